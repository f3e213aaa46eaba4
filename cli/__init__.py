"""The commands of ./plumb, in reading order:

session/    a session of ReFrame from start to table; saved output; records
nightly/    nightly sessions, nodes that are slow
site/       the folder of a site: new, check, doctor
setup/      virtual environment, software stacks, new benchmarks
demo/       made-up sessions, their verdict and page
pipes       a reader that leaves (`| head`) ends a command quietly
"""
