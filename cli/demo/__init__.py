"""`./plumb demo`: nightly sessions of a made-up cluster, in reading order:

cluster     the cluster, its test cases, and what goes wrong in it
records     writes the perflogs of its sessions
command     writes them and their page, prints the verdict
"""
