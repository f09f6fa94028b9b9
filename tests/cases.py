"""The cases in which real systems went wrong, by area. Each is a test here, and its docstring names the case."""

CASES = {
    "admission": ("G01", "G03"),
    "backpressure": ("D13",),
    "disconnect": ("D01", "D02", "D03", "D05", "D07", "D09", "D11"),
    "http": ("H08",),
    "observability": ("H04",),
    "redis": ("G04", "G06", "G08", "G09"),
    "security": ("A21", "H01", "H03", "H06"),
    "shutdown": ("D14",),
    "streaming-protocol": ("B07", "B09", "B11"),
    "streaming-text": ("B01", "B03", "B04", "B06"),
    "time": ("G11",),
    "validation": (
        *("A01", "A03", "A04", "A06", "A07", "A08", "A10", "A11", "A13", "A14", "A15", "A17", "A18", "A19", "A22"),
    ),
}
