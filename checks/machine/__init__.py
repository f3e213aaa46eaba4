"""The machine under a run: its CPUs, and what else ran on its nodes."""
