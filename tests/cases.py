"""The cases in which real systems went wrong, by area. Each is a test here, and its docstring names the case."""

CASES = {
    "admission": ("G01", "G03"),
    "backpressure": ("D13",),
    "determinism": ("C01",),
    "disconnect": ("D01", "D02", "D03", "D05", "D07", "D09", "D11"),
    "http": ("H08",),
    "observability": ("H04",),
    "redis": ("G04", "G06", "G08", "G09"),
    "security": ("A21", "H01", "H03", "H06"),
    "shutdown": ("D14",),
    "time": ("G11",),
    "worker": ("F01", "F02"),
    "worker-protocol": ("F03", "F05"),
}
