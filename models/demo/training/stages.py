"""The curriculum: from rows of 1024 tokens to longer ones.

A batch has one of the "shapes" [row length, rows, share of the batches]. "mix" gives the shares of
the kinds of rows (data.py). "lr" is the first and last Muon rate, linear between them; AdamW, which
has the head, gets "head" of it. "gaps" is the share of rows whose positions jump, so that short rows
see long distances; "evaluate" the lengths of the held-out checks.
"""

MIX = {"repeats": 0.2, "needles": 1.5, "niah": 1.0, "uuids": 2.5, "vt": 2.0, "single": 0.7,
       "chat": 2.0, "story": 0.5, "prose": 0.6}
STAGES = [
    {"shapes": [[1024, 6, 1]], "steps": 230, "lr": [0.007, 0.006], "warmup": 20, "gaps": 0.4,
     "head": 0.15, "evaluate": [4096], "mix": MIX},
    {"shapes": [[4096, 2, 0.5], [1024, 8, 0.5]], "steps": 150, "lr": [0.006, 0.001], "gaps": 0.4,
     "head": 0.15, "evaluate": [4096, 8192], "mix": MIX},
    {"shapes": [[8192, 1, 0.6], [2048, 4, 0.4]], "steps": 75, "lr": [0.002, 0.0002], "gaps": 0.4,
     "head": 0.15, "evaluate": [4096, 8192], "mix": MIX},
]
