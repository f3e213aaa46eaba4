/* Commands that run a model or a script. */
#ifndef RUN_H
#define RUN_H
#include "tensor.h"

Command model_execute, script_run;

/* The key becomes the tensor, which the key holds from then on.  What is
 * wrong, or NULL. */
const char *put_tensor(Context *context, String *name, struct tensor *tensor);
/* The value of a key of the type, or NULL; *error says why, `empty` where
 * there is no such key. */
void *value_at(Context *context, String *name, Type *type, const char *empty,
               const char **error);

#endif
