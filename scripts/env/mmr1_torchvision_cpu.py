"""Make torchvision's CUDA wheel importable with a CPU build of torch.

The wheel registers meta kernels for ``torchvision::nms`` and ``torchvision::qnms``. Their schemas
are in a library that cannot be loaded without CUDA, so the import fails with "operator
torchvision::nms does not exist". mmr1 calls neither operator, so it is enough to declare the
schemas first. ``scripts/setup_env.sh`` copies this file into site-packages with a ``.pth`` line
that imports it, because vLLM inspects models in separate subprocesses.

Start-up cost: one finder on ``sys.meta_path``; torch is not imported here.
"""

import importlib.abc
import sys


class _BeforeTorchvision(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            _declare_schemas()
        return None


def _declare_schemas():
    import torch

    if torch.version.cuda is not None:
        return
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declare_schemas.library = library  # the schemas exist as long as this object


sys.meta_path.insert(0, _BeforeTorchvision())
