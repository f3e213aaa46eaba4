/* Runs TorchScript by libtorch. Nothing that libtorch throws leaves this file. */
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

void run_jobs(struct program *program, struct job *jobs)
{
    at::NoGradGuard no_gradients;
    std::vector<at::Tensor> parts;
    for (struct job *job = jobs; job; job = job->next)
        parts.push_back(argument_of(job->in));
    at::Tensor all = jobs->next ? at::cat(parts) : parts[0];
    torch::jit::IValue value;
    if (!program->script)
        value = program->model.forward({all});
    else if (auto *function = program->script->find_function(
                 c10::QualifiedName(jobs->function)))
        value = (*function)({all});
    else
        throw std::runtime_error("no such function");
    if (!value.isTensor())
        throw std::runtime_error("it gives back " + value.tagKind() +
                                 ", and no tensor");
    at::Tensor result = value.toTensor();
    if (!jobs->next) {
        jobs->out = result_of(result);
        return;
    }
    if (!result.dim() || result.size(0) != all.size(0))
        throw std::runtime_error("its output has not as many rows as its "
                                 "input: it cannot have a BATCHSIZE");
    int64_t at = 0;
    for (struct job *job = jobs; job; job = job->next) {
        job->out = result_of(result.narrow(0, at, job->in->shape[0]));
        at += job->in->shape[0];
    }
}

}

struct program *program_of_model(const char *blob, size_t size,
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

struct program *program_of_script(const char *source, size_t size,
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

void program_drop(struct program *program)
{
    delete program;
}

const char *program_run(struct program *program, struct job *jobs)
{
    try {
        run_jobs(program, jobs);
        return nullptr;
    } catch (const std::exception &thrown) {
        return one_line(*jobs->function ? jobs->function : "forward", thrown);
    }
}

const char *programs_begin(void)
{
    at::set_num_interop_threads((int)settings.inter_op);
    return nullptr;
}

void programs_begin_thread(void)
{
    at::set_num_threads((int)settings.intra_op);
}

const char *program_version(void)
{
    return "libtorch " TORCH_VERSION;
}
