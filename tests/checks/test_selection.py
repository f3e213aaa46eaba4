"""Modes smoke and veto: which test cases of a check they have."""
from __future__ import annotations

import re

#: GPUs of one partition; environments in another order than by name.
SITE = '''
from checks.core import environs
from config.common import SETTINGS

def partition(name, max_nodes, names):
    return {'name': name, 'scheduler': 'slurm', 'launcher': 'srun',
            'environs': names, 'access': ['--exclusive'],
            'processor': {'num_cpus': 64, 'num_cpus_per_core': 1},
            'extras': {'max_nodes': max_nodes, 'launcher_pin': ['--cpu-bind=cores']}}

def stores(name, *features):
    return {'name': name, 'cc': 'cc', 'features': [*features],
            'extras': {'programs': {'keyvalue': {'source': 'system'}}}}

site_configuration = {**SETTINGS, 'systems': [{
    'name': 'cluster', 'hostnames': ['.*'], 'partitions': [
        partition('large', 4, ['memcached', 'second', 'first', 'redis']),
        partition('single', 1, ['redis', 'memcached'])]}],
    'environments': [environs.mpi_environment('first', 'mpich 5'),
                     environs.mpi_environment('second', 'mpich 5'),
                     stores('memcached', 'memcached'),
                     stores('redis', 'redis', 'valkey')]}
'''


def test_reframe_lists_one_test_case_per_family_and_partition(suite):
    """On two nodes if the partition allows them, in its first environment that has
    the programs, and with the first store of this environment."""
    suite.write_site(suite.tmp / 'site', SITE)
    output = suite.reframe('-lC', '--mode=smoke').stdout
    assert sorted(re.findall(
        r'^- (\w+).*%(?:scenario|placement)=(\w+).* @cluster:(\w+\+\w+)', output, re.M)
    ) == [('OsuPt2pt', 'inter_node', 'large+second'),
          ('StoreServes', 'memcached', 'large+memcached'),
          ('StoreServes', 'redis', 'single+redis')], output
