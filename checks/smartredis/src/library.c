/* library.c - SmartRedis itself, by the C functions of its shared object: that
 * of the Python wheel has them all, and no header with them, so what is used
 * is declared here (0.5 to 0.6.1).
 *
 * The object wants 29 data symbols of Python, and none of them for these
 * functions: the empty ones below stand in, and no Python is loaded. */
#define _GNU_SOURCE
#include "../../load/src/load.h"
#include "tensor.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#define STANDS_IN(name) \
    __attribute__((visibility("default"))) void *name[128];
STANDS_IN(PyBaseObject_Type) STANDS_IN(PyByteArray_Type)
STANDS_IN(PyCFunction_Type) STANDS_IN(PyCapsule_Type)
STANDS_IN(PyDict_Type) STANDS_IN(PyExc_BufferError)
STANDS_IN(PyExc_Exception) STANDS_IN(PyExc_FutureWarning)
STANDS_IN(PyExc_ImportError) STANDS_IN(PyExc_IndexError)
STANDS_IN(PyExc_MemoryError) STANDS_IN(PyExc_OverflowError)
STANDS_IN(PyExc_RuntimeError) STANDS_IN(PyExc_SystemError)
STANDS_IN(PyExc_TypeError) STANDS_IN(PyExc_ValueError)
STANDS_IN(PyFloat_Type) STANDS_IN(PyInstanceMethod_Type)
STANDS_IN(PyMethod_Type) STANDS_IN(PyModule_Type)
STANDS_IN(PyObject_GenericGetDict) STANDS_IN(PyObject_GenericSetDict)
STANDS_IN(PyProperty_Type) STANDS_IN(PyStaticMethod_Type)
STANDS_IN(PyType_Type) STANDS_IN(_Py_FalseStruct)
STANDS_IN(_Py_NoneStruct) STANDS_IN(_Py_NotImplementedStruct)
STANDS_IN(_Py_TrueStruct)

/* SRTensorTypeFloat, SRMemLayoutContiguous */
enum { FLOAT_TYPE = 2, CONTIGUOUS = 2 };

static struct {
    int (*connect)(const char *logger, size_t size, void **client);
    int (*put)(void *client, const char *name, size_t size, void *data,
               const size_t *dims, size_t dim_count, int type, int layout);
    int (*unpack)(void *client, const char *name, size_t size, void *data,
                  const size_t *dims, size_t dim_count, int type,
                  int layout);
    int (*exists)(void *client, const char *name, size_t size, bool *found);
    int (*forget)(void *client, const char *name, size_t size);
    int (*script)(void *client, const char *name, size_t size,
                  const char *function, size_t function_size,
                  const char **in, const size_t *in_sizes, size_t in_count,
                  const char **out, const size_t *out_sizes,
                  size_t out_count);
    int (*model)(void *client, const char *name, size_t size,
                 const char **in, const size_t *in_sizes, size_t in_count,
                 const char **out, const size_t *out_sizes,
                 size_t out_count);
    const char *(*said)(void);
} sr;
static void *of;                 /* the client                            */
static struct client self;

static void must(int code, const char *what, const char *key)
{
    if (code) {
        const char *why = sr.said();
        die("SmartRedis: %s of %s: %s", what, key,
            why ? printable(why) : "no word why");
    }
}

static void *function(void *object, const char *name)
{
    void *found = dlsym(object, name);

    if (!found)
        die("%s has no function %s: is it SmartRedis' 0.5 to 0.6?",
            arg.library, name);
    return found;
}

static void open_library(void)
{
    char where[sizeof opt.nodes->name + 16], name[32];

    choose_servers();
    /* It has no password, so only a socket of one's own will do. */
    if (opt.node_count != 1
        || opt.nodes->address.ss_family != AF_UNIX || opt.password)
        die("SmartRedis sends no password: give one server on a Unix socket "
            "(a colocated database)");
    snprintf(where, sizeof where, "unix://%s",
             ((struct sockaddr_un *)&opt.nodes->address)->sun_path);
    setenv("SSDB", where, 1);
    setenv("SR_DB_TYPE", "Standalone", 1);
    setenv("SR_LOG_LEVEL", "QUIET", 0);
    snprintf(name, sizeof name, "rank_%d", rank);
    must(sr.connect(name, strlen(name), &of), "the connection", where);
}

static void put_dims(const char *key, const float *data, const size_t *dims,
                     size_t count)
{
    must(sr.put(of, key, strlen(key), (void *)data, dims, count, FLOAT_TYPE,
                CONTIGUOUS), "put_tensor", key);
}

static void put_tensor(const char *key, const float *data, size_t n)
{
    put_dims(key, data, (size_t[]){1, n}, 2);
}

static void put_shaped(const char *key, const float *data, const int *dims,
                       int count)
{
    size_t wide[8];

    for (int i = 0; i < count && i < 8; i++)
        wide[i] = (size_t)dims[i];
    put_dims(key, data, wide, (size_t)count);
}

static void unpack_tensor(const char *key, float *data, size_t n)
{
    /* As the original: flat. */
    must(sr.unpack(of, key, strlen(key), data, &n, 1, FLOAT_TYPE,
                   CONTIGUOUS), "unpack_tensor", key);
}

static bool exists(const char *key)
{
    bool found = false;

    must(sr.exists(of, key, strlen(key), &found), "key_exists", key);
    return found;
}

static void delete_tensor(const char *key)
{
    must(sr.forget(of, key, strlen(key)), "delete_tensor", key);
}

static void run_script(const char *name, const char *called, const char *in,
                       const char *out)
{
    size_t in_size = strlen(in), out_size = strlen(out);

    must(sr.script(of, name, strlen(name), called, strlen(called), &in,
                   &in_size, 1, &out, &out_size, 1), "run_script", name);
}

static void run_model(const char *name, const char *in, const char *out)
{
    size_t in_size = strlen(in), out_size = strlen(out);

    must(sr.model(of, name, strlen(name), &in, &in_size, 1, &out, &out_size,
                  1), "run_model", name);
}

/* Models and scripts are stored by the own client, which is opened once. */
static const struct client *own(void)
{
    static bool opened;

    if (!opened)
        embedded.open();
    opened = true;
    return &embedded;
}

static void set_model(const char *name, const char *device, int batch,
                      const char *blob, size_t size)
{
    own()->set_model(name, device, batch, blob, size);
}

static void set_script(const char *name, const char *device,
                       const char *source, size_t size)
{
    own()->set_script(name, device, source, size);
}

const struct client *library(const char *path)
{
    void *object = dlopen(path, RTLD_LAZY | RTLD_GLOBAL);

    if (!object)
        die("%s: %s", path, dlerror());
    sr.connect = function(object, "SimpleCreateClient");
    sr.put = function(object, "put_tensor");
    sr.unpack = function(object, "unpack_tensor");
    sr.exists = function(object, "key_exists");
    sr.forget = function(object, "delete_tensor");
    sr.script = function(object, "run_script");
    sr.model = function(object, "run_model");
    sr.said = function(object, "SRGetLastError");
    self = (struct client){
        .name = "smartredis", .commands = embedded.commands,
        .open = open_library, .put_tensor = put_tensor,
        .unpack_tensor = unpack_tensor, .put_shaped = put_shaped,
        .exists = exists, .delete_tensor = delete_tensor,
        .run_script = run_script, .run_model = run_model,
        .set_model = set_model, .set_script = set_script};
    return &self;
}
