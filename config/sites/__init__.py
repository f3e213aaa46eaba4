"""What site-configs/ and checks use to describe machines.

* `launch`: options of launchers to pin and place ranks
* `fabrics`: settings of interconnects
* `topology`: groups of nodes in the network, from topology.yaml
* `programs`: output of programs
"""
