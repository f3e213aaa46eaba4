/* smartredis.cpp - the client of a database: SmartRedis' own library in C++,
 * linked if the environment has it (build.sh). The calls are those of
 * SmartSim-Scaling's applications. */
#define _Noreturn [[noreturn]]
extern "C" {
#include "../../core/src/common/service.h"
#include "tensor.h"
}

#include <client.h>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

using SmartRedis::Client;
using SmartRedis::DataSet;

static std::unique_ptr<Client> library;
static std::vector<DataSet> datasets_read;

/* Calls the library; an error of it ends the program with one line. */
template <typename Call> static auto ask(const char *key, Call call)
{
    try {
        return call();
    } catch (const std::exception &error) {
        fail("SmartRedis: %s: %s", key, printable(error.what()));
    }
}

static void set(const char *name, const std::string &value)
{
    if (setenv(name, value.c_str(), 1))
        fail("cannot set %s", name);
}

/* The library takes all of its options from the environment. */
static void open_library()
{
    const struct service *service = read_servers();
    const std::string seconds = std::to_string((int)(arg.limit + 0.999));
    const std::string unix_name = "unix:";
    std::string addresses;

    for (int i = 0; i < service->count; i++) {
        std::string name = service->servers[i].name;
        if (!name.compare(0, unix_name.size(), unix_name))
            name.insert(unix_name.size(), "//");
        addresses += (i ? "," : "") + name;
    }
    set("SSDB", addresses);
    set("SR_DB_TYPE", service->cluster ? "Clustered" : "Standalone");
    set("SR_CONN_TIMEOUT", seconds);
    set("SR_CMD_TIMEOUT", seconds);
    /* In ms. Its 250 ms would end each call on a busy server, or of a large
     * model, before the answer. */
    set("SR_SOCKET_TIMEOUT", seconds + "000");
    set("SR_THREAD_COUNT", std::to_string(arg.threads));
    set("SR_LOG_LEVEL", "QUIET");
    ask("connect", [] { library = std::make_unique<Client>("tensorload"); });
}

static void put_tensor(const char *key, const float *data,
                       const long long *dims, int dim_count)
{
    ask(key, [&] {
        library->put_tensor(key, data,
                            std::vector<size_t>(dims, dims + dim_count),
                            SRTensorTypeFloat, SRMemLayoutContiguous);
    });
}

static void unpack_tensor(const char *key, float *data, size_t n)
{
    ask(key, [&] {
        library->unpack_tensor(key, data, {n}, SRTensorTypeFloat,
                               SRMemLayoutContiguous);
    });
}

static std::string tensor_name(int number)
{
    return "tensor_" + std::to_string(number);
}

static void put_dataset(const char *name, const float *data, size_t n,
                        int count)
{
    ask(name, [&] {
        DataSet dataset(name);
        for (int i = 0; i < count; i++)
            dataset.add_tensor(tensor_name(i), data + (size_t)i * n, {1, n},
                               SRTensorTypeFloat, SRMemLayoutContiguous);
        library->put_dataset(dataset);
    });
}

/* The library appends the name of the dataset. */
static void append_to_list(const char *list, const char *dataset)
{
    ask(list, [&] { library->append_to_list(list, DataSet(dataset)); });
}

static long list_length(const char *list)
{
    return ask(list, [&] { return library->get_list_length(list); });
}

static void get_list(const char *list, float *, long *, size_t datasets,
                     size_t, int, int)
{
    ask(list, [&] {
        datasets_read = library->get_datasets_from_list(list);
    });
    if (datasets_read.size() != datasets)
        fail("SmartRedis: %s has %zu datasets instead of %zu", list,
             datasets_read.size(), datasets);
}

static void unpack_list(const char *list, float *data, long *who, size_t n,
                        int count)
{
    for (size_t d = 0; d < datasets_read.size(); d++) {
        DataSet &one = datasets_read[d];
        who[d] = producer_of(one.get_name().c_str());
        ask(list, [&] {
            for (int i = 0; i < count; i++)
                one.unpack_tensor(
                    tensor_name(i),
                    data + (d * (size_t)count + (size_t)i) * n, {n},
                    SRTensorTypeFloat, SRMemLayoutContiguous);
        });
    }
    datasets_read.clear();
}

static void delete_list(const char *list)
{
    ask(list, [&] { library->delete_list(list); });
}

/* Of a cluster each server has a copy of a script, as of a model; key_exists
 * and poll_key of the library look for the script under another name. */
static bool exists(const char *key)
{
    return ask(key, [&] { return library->model_exists(key); });
}

static void set_model(const char *name, const char *device, int batch,
                      const char *blob, size_t size)
{
    ask(name, [&] {
        library->set_model(name, std::string_view(blob, size), "TORCH",
                           device, batch);
    });
}

static void set_script(const char *name, const char *device,
                       const char *source, size_t size)
{
    ask(name, [&] {
        library->set_script(name, device, std::string_view(source, size));
    });
}

static void run_script(const char *name, const char *function,
                       const char *in, const char *out)
{
    ask(name, [&] { library->run_script(name, function, {in}, {out}); });
}

static void run_model(const char *name, const char *in, const char *out)
{
    ask(name, [&] { library->run_model(name, {in}, {out}); });
}

static void delete_tensor(const char *key)
{
    ask(key, [&] { library->delete_tensor(key); });
}

extern "C" const struct client smartredis = {
    "smartredis", open_library, put_tensor, unpack_tensor,
    put_dataset, append_to_list, list_length, get_list, unpack_list,
    delete_list, exists, set_model, set_script, run_script, run_model,
    delete_tensor,
};
