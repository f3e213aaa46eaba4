/* Runs TorchScript by libtorch. Nothing that libtorch throws leaves this
 * file. */
#include <torch/jit.h>
#include <torch/script.h>
#include <torch/version.h>
#include <ATen/Parallel.h>
#include <sstream>
#include <string>
#include <vector>

extern "C" {
#include "module.h"
}

/* A model, or the functions of a script. */
struct program {
    torch::jit::Module model;
    std::shared_ptr<torch::jit::CompilationUnit> script;
};

namespace {

using Value = torch::jit::IValue;
using Values = std::vector<Value>;
using Tensors = std::vector<at::Tensor>;

/* One line for a client; the last line of libtorch has the
 * reason, those before it have the place in the source. */
const char *one_line(const char *what, const std::exception &error)
{
    static thread_local std::string line;
    auto *own = dynamic_cast<const c10::Error *>(&error);
    std::string text = own ? own->what_without_backtrace() : error.what();
    text.erase(text.find_last_not_of(" \t\r\n") + 1);
    line = std::string("ERR ") + what + ": " +
        text.substr(text.rfind('\n') + 1, 200);
    for (char &c : line)
        if (c < ' ' || c > '~')
            c = ' ';
    return line.c_str();
}

/* In the order of enum type; not each libtorch has UINT16. */
const at::ScalarType kinds[TYPES] = {
    at::kFloat, at::kDouble, at::kChar, at::kShort, at::kInt, at::kLong,
    at::kByte, at::ScalarType::Undefined, at::kBool};

/* A copy: a program may write into its arguments, and a tensor of a key is
 * never changed. */
at::Tensor argument_of(const struct tensor *tensor)
{
    at::ScalarType kind = kinds[tensor->type];
    if (kind == at::ScalarType::Undefined)
        throw std::runtime_error(std::string("libtorch takes no tensors of ")
                                 + type_names[tensor->type]);
    std::vector<int64_t> shape(tensor->shape, tensor->shape + tensor->dims);
    return at::from_blob(tensor->data, shape, at::dtype(kind)).clone();
}

struct tensor *result_of(const at::Tensor &value)
{
    at::Tensor tensor = value.to(at::kCPU).contiguous();
    int type = 0;
    while (type < TYPES && (kinds[type] != tensor.scalar_type()
                            || kinds[type] == at::ScalarType::Undefined))
        type++;
    if (type == TYPES)
        throw std::runtime_error(std::string("no tensor of a key has the "
                                             "type ") +
                                 c10::toString(tensor.scalar_type()));
    if (!tensor.numel() || tensor.dim() > MAX_DIMS)
        throw std::runtime_error("an output is empty, or has more than 32 "
                                 "dimensions");
    std::vector<long long> shape(tensor.sizes().begin(),
                                 tensor.sizes().end());
    const char *error = nullptr;
    struct tensor *made = tensor_new((enum type)type, shape.data(),
                                     (int)shape.size(), nullptr, &error);
    if (!made)
        throw std::runtime_error(error);
    memcpy(made->data, tensor.data_ptr(), made->bytes);
    return made;
}

/* The tensors of what a function gives back: one, a tuple or a list. */
Tensors tensors_of(const Value &value)
{
    if (value.isTensor())
        return {value.toTensor()};
    if (value.isTensorList())
        return value.toTensorVector();
    if (!value.isTuple())
        throw std::runtime_error("it gives back " + value.tagKind() +
                                 ", and no tensors");
    Tensors all;
    for (const Value &one : value.toTupleRef().elements())
        for (const at::Tensor &tensor : tensors_of(one))
            all.push_back(tensor);
    return all;
}

Value run(const struct program *program, const char *name, Values values)
{
    if (!program->script) {
        torch::jit::Module model = program->model;  /* a reference */
        return model.forward(values);
    }
    torch::jit::Function *function = program->script->find_function(
        c10::QualifiedName(name));
    if (!function)
        throw std::runtime_error(std::string("no function ") + name);
    /* RedisAI's scripts may take all tensors as one list. */
    const auto &wants = function->getSchema().arguments();
    if (wants.size() == 1 &&
        wants[0].type()->isSubtypeOf(*c10::ListType::ofTensors())) {
        c10::List<at::Tensor> list;
        for (const Value &value : values)
            list.push_back(value.toTensor());
        values = {Value(list)};
    }
    return (*function)(std::move(values));
}

void run_jobs(const struct program *program, const char *name,
              struct job *jobs)
{
    at::NoGradGuard no_gradients;
    Values values;
    std::vector<int64_t> rows;
    int64_t all = 0;
    for (struct job *job = jobs; jobs->next && job; job = job->next) {
        rows.push_back(job->in[0]->shape[0]);
        all += rows.back();
    }
    if (jobs->next) {                   /* one input each */
        Tensors parts;
        for (struct job *job = jobs; job; job = job->next)
            parts.push_back(argument_of(job->in[0]));
        values.push_back(at::cat(parts));
    } else
        for (int i = 0; i < jobs->inputs; i++)
            values.push_back(argument_of(jobs->in[i]));
    Tensors results = tensors_of(run(program, name, std::move(values)));
    if (results.size() != (size_t)jobs->outputs)
        throw std::runtime_error(
            "it gives back " + std::to_string(results.size()) +
            " tensors, asked for were " + std::to_string(jobs->outputs));
    for (int o = 0; o < jobs->outputs; o++) {
        const at::Tensor &result = results[o];
        if (!jobs->next) {
            jobs->out[o] = result_of(result);
            continue;
        }
        if (!result.dim() || result.size(0) != all)
            throw std::runtime_error("its outputs have not as many rows as "
                                     "its inputs: it cannot have a "
                                     "BATCHSIZE");
        int64_t at = 0;
        size_t c = 0;
        for (struct job *job = jobs; job; at += rows[c++], job = job->next)
            job->out[o] = result_of(result.narrow(0, at, rows[c]));
    }
}

}

struct program *torch_model(const char *blob, size_t size,
                            const char **error)
{
    try {
        std::istringstream text(std::string(blob, size));
        auto model = torch::jit::load(text, at::Device(at::kCPU));
        model.eval();
        return new program{model, nullptr};
    } catch (const std::exception &thrown) {
        *error = one_line("the blob is no model of TorchScript", thrown);
        return nullptr;
    }
}

struct program *torch_script(const char *source, size_t size,
                             const char **error)
{
    try {
        return new program{torch::jit::Module(), torch::jit::compile(
            std::string(source, size))};
    } catch (const std::exception &thrown) {
        *error = one_line("the source is no TorchScript", thrown);
        return nullptr;
    }
}

void torch_drop(struct program *program)
{
    delete program;
}

const char *torch_run(const struct program *program, const char *name,
                      struct job *jobs)
{
    try {
        run_jobs(program, name, jobs);
        return nullptr;
    } catch (const std::exception &thrown) {
        return one_line(name, thrown);
    }
}

void torch_operations(int inter)
{
    at::set_num_interop_threads(inter);
}

void torch_threads(int intra)
{
    at::set_num_threads(intra);
}

const char *torch_version(void)
{
    return TORCH_VERSION;
}
