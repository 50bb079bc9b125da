"""The curriculum: from 512-token rows to 8192-token rows.

A batch has one of the "shapes" [row length, rows, share of the batches]. "mix" gives the shares of
the kinds of rows (data.py), "lr" the first and last Muon rate (linear between them; AdamW gets
adam_ratio of it), "gaps" the share of rows whose positions jump, "evaluate" the lengths of the
held-out checks.
"""

STAGES = [
    {"shapes": [[512, 16, 1]], "steps": 600, "lr": [0.01, 0.01], "warmup": 30, "gaps": 0.5,
     "adam_ratio": 0.05, "evaluate": [512],
     "mix": {"repeats": 1.5, "lookup": 3, "needles": 3, "niah": 2, "uuids": 1.5, "vt": 2,
             "single": 0.5, "chat": 0.8, "story": 0.3, "prose": 0.4}},
    {"shapes": [[1024, 8, 1]], "steps": 500, "lr": [0.01, 0.009], "gaps": 0.5,
     "adam_ratio": 0.05, "evaluate": [1024],
     "mix": {"repeats": 0.5, "lookup": 2, "needles": 3, "niah": 2.5, "uuids": 2.5, "vt": 2,
             "vt_benchmark": 0.5, "single": 0.7, "chat": 0.8, "story": 0.2, "prose": 0.4}},
    {"shapes": [[2048, 4, 0.7], [512, 16, 0.3]], "steps": 450, "lr": [0.009, 0.008], "gaps": 0.4,
     "adam_ratio": 0.05, "evaluate": [2048],
     "mix": {"repeats": 0.3, "lookup": 1.5, "needles": 3, "niah": 2.5, "uuids": 2.5, "vt": 2,
             "vt_benchmark": 0.8, "single": 0.7, "fwe": 0.3, "cwe": 0.3,
             "chat": 0.8, "story": 0.2, "prose": 0.4}},
    {"shapes": [[4096, 2, 0.7], [1024, 8, 0.3]], "steps": 450, "lr": [0.008, 0.006], "gaps": 0.4,
     "adam_ratio": 0.05, "evaluate": [4096],
     "mix": {"lookup": 1, "needles": 3, "niah": 2.5, "uuids": 3, "vt": 1.5,
             "vt_benchmark": 1, "single": 0.7, "fwe": 0.3, "cwe": 0.3,
             "chat": 0.8, "story": 0.2, "prose": 0.4}},
]
