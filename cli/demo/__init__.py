"""`./plumb demo`: what a cluster looks like, and what a fault looks like:

cluster     a made-up cluster, its test cases, and what goes wrong in it
records     writes the perflogs of its sessions
command     writes them and their page, prints the verdict
live        measures on this machine, makes two real faults, removes them
"""
