"""The nodes of a job: their CPUs, and interference by other processes."""
