"""Commands for the folder of a site, in reading order:

new             ./plumb site new, with its templates
detect          facts of a machine from the output of its commands
nodes           the nodes of the partitions of Slurm
pbs             queues and nodes of PBS
partitions      wrong values of a partition that otherwise only a job reveals
listing         the list of `cases` in a process of its own
check           ./plumb site check
cases           test cases that ReFrame generates for a site
spack_yaml      whether Spack loads the stacks of the site
schedulers      whether Slurm or PBS answers, and which nodes it has
doctor          ./plumb doctor: which test cases can run, and why others cannot
"""
