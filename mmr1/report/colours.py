"""The colours of the report's curves and of all plots: those of Okabe and Ito.

They can be told apart by people who are blind to some colours, and in grey.
"""

COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#8a6d00",
    "#7f7f7f",
)
DPI = 200
"""Of figures: twice the resolution at which they are shown."""
