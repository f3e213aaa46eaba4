/* In a user namespace of one user nobody may set groups; there are none to
 * set. Slurm takes the refusal for the end, so it is told that all is well.
 */
#include <grp.h>

int setgroups(size_t size, const gid_t *list)
{
    (void)size;
    (void)list;
    return 0;
}

int initgroups(const char *user, gid_t group)
{
    (void)user;
    (void)group;
    return 0;
}
