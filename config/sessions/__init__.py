"""A session of ReFrame: its start, its test cases and its records.

In reading order:

* `modes`: the modes of `reframe --mode`
* `selection`: the test cases of modes smoke and veto
* `cost`: node-hours of test cases together
* `disk`: failures because of a full disk
* `caller`: variables of the caller that must not change records
* `run_id`: names of sessions
* `clock`: sessions that are dated in the future or before the newest record
* `lock`: one session at a time on a machine, one set-up per work folder
* `progress`: how far a session is, for one line of `plumb run`
* `runner`: the subclass of ReFrame's runner: plan, records and retries
* `ordering`: which test cases run first, and how many fit into a time
* `pinned`: test cases on chosen nodes
* `judged`: how a value compares with its reference
* `slurm_jobs`: jobs of a session that ReFrame does not cancel
* `local_jobs`: local jobs in work folders whose paths need quotes
"""
