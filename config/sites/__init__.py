"""What site-configs/ and checks use to describe machines.

* `launch`: options of launchers to pin and place ranks
* `fabrics`: settings of interconnects
* `topology`: groups of nodes in the network, from topology.yaml
* `programs`: output of programs
"""

#: True in commands of plumb, which read sites and start ReFrame as another process.
#: Elsewhere ReFrame reads a site, and config/common.py prepares the session then.
only_read = False
