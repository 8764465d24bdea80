"""Small rows in the form of every dataset that has a converter, and the records they become.

The rows are made up, their pictures are noise and their videos a moving bar. Only the form is that
of the datasets: the keys, the way values are written, and where the files lie.
"""

from __future__ import annotations

from tests.datasets_prep.dataset_rows.boxes import BOXES
from tests.datasets_prep.dataset_rows.counting import COUNTING
from tests.datasets_prep.dataset_rows.geometry import GEOMETRY
from tests.datasets_prep.dataset_rows.mathematics import MATHEMATICS
from tests.datasets_prep.dataset_rows.projects import PROJECTS
from tests.datasets_prep.dataset_rows.steps import STEPS
from tests.datasets_prep.dataset_rows.videos import VIDEOS

DATASETS = [*GEOMETRY, *MATHEMATICS, *COUNTING, *BOXES, *VIDEOS, *PROJECTS, *STEPS]
