"""The curriculum: from 512-token rows to 8192-token rows.

A batch has one of the "shapes" [row length, rows, share of the batches]. "mix" gives the shares of
the kinds of rows (data.py). "lr" is the first and last Muon rate, linear between them; AdamW gets
"adam" of it, and the attention matrices that initialization.py lays out get "laid_out" of it, which
keeps a young circuit from being washed out by the noise of the first batches. "gaps" is the share
of rows whose positions jump, "evaluate" the lengths of the held-out checks; "longer_key" applies
initialization.longer_key before the first step. The weights that are released here ran stages 0
and 1 and 32 steps of stage 2 as one process, the rest as two (--ranks 2).
"""

STAGES = [
    {"shapes": [[512, 8, 1]], "steps": 160, "lr": [0.008, 0.008], "warmup": 20, "gaps": 0.3,
     "laid_out": 0.0, "adam": 0.05, "evaluate": [512],
     "mix": {"repeats": 0.7, "connect": 1.5, "lookup": 1, "needles": 3, "niah": 2, "uuids": 1.5,
             "vt": 2.5, "single": 0.6, "chat": 1, "story": 0.2, "prose": 0.3}},
    {"shapes": [[2048, 2, 0.5], [512, 8, 0.5]], "steps": 300, "lr": [0.008, 0.007], "gaps": 0.4,
     "laid_out": 0.2, "adam": 0.05, "evaluate": [2048],
     "mix": {"repeats": 0.4, "connect": 1, "lookup": 0.5, "needles": 2.5, "niah": 2.5, "uuids": 2,
             "vt": 2.5, "vt_benchmark": 0.7, "single": 0.7, "fwe": 0.3, "cwe": 0.2,
             "chat": 0.8, "story": 0.2, "prose": 0.3}},
    {"shapes": [[8192, 1, 0.5], [1024, 6, 0.5]], "steps": 82, "lr": [0.006, 0.006], "gaps": 0.4,
     "laid_out": 0.2, "adam": 0.05, "evaluate": [],
     "mix": {"repeats": 0.2, "connect": 0.5, "lookup": 0.2, "needles": 3, "niah": 2.5,
             "uuids": 3.5, "vt": 0.6, "vt_benchmark": 1.4, "single": 1, "fwe": 0.2, "cwe": 0.2,
             "chat": 1, "story": 0.3, "prose": 0.3}},
    {"shapes": [[8192, 1, 0.4], [1024, 6, 0.6]], "steps": 90, "lr": [0.006, 0.0005], "gaps": 0.4,
     "laid_out": 0.3, "adam": 0.05, "evaluate": [], "longer_key": True,
     "mix": {"repeats": 0.1, "connect": 0.4, "needles": 3, "niah": 2.5, "uuids": 4.5, "vt": 0.3,
             "vt_benchmark": 1.2, "single": 1, "fwe": 0.2, "cwe": 0.1, "chat": 1.2, "story": 0.4,
             "prose": 0.2}},
]
