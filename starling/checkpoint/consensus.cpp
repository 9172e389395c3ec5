#include "starling/checkpoint/consensus.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <vector>

#include <fmt/format.h>

#include "starling/core/error.h"

namespace starling {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::string_view kPrefix = "model.";

// f(k, element k of worker 0, 1, ..) becomes element k of the result.
template <class T>
Bytes combine(const std::vector<Bytes>& workers, const std::function<T(std::span<const T>)>& f) {
  Bytes result(workers.front().size());
  std::vector<T> values(workers.size());
  for (std::size_t at = 0; at < result.size(); at += sizeof(T)) {
    for (std::size_t i = 0; i < workers.size(); ++i)
      std::memcpy(&values[i], workers[i].data() + at, sizeof(T));
    const T value = f(values);
    std::memcpy(result.data() + at, &value, sizeof(T));
  }
  return result;
}

template <class T>
Bytes average(const std::vector<Bytes>& workers) {
  return combine<T>(workers, [](std::span<const T> values) {
    double sum = 0;
    for (const T value : values) sum += value;
    return static_cast<T>(sum / static_cast<double>(values.size()));
  });
}

template <class T>
Bytes largest(const std::vector<Bytes>& workers) {
  return combine<T>(
      workers, [](std::span<const T> values) { return *std::max_element(values.begin(), values.end()); });
}

Bytes consensus_of(const TensorInfo& tensor, const std::vector<Bytes>& workers, const std::string& path) {
  const std::string& type = tensor.dtype;
  if (type == "F32") return average<float>(workers);
  if (type == "F64") return average<double>(workers);
  if (type == "I64") return largest<std::int64_t>(workers);
  if (type == "I32") return largest<std::int32_t>(workers);
  if (type == "I16") return largest<std::int16_t>(workers);
  if (type == "I8") return largest<std::int8_t>(workers);
  if (type == "U8" || type == "BOOL") return largest<std::uint8_t>(workers);
  throw Error(
      fmt::format("{}: tensor \"{}\" is {}; averaged are F32 and F64, of whole numbers the largest is taken",
                  path, tensor.name, type));
}

}  // namespace

void write_consensus(const Checkpoint& checkpoint, const std::string& out) {
  std::vector<SafetensorsReader> workers;
  for (const WorkerFile& file : checkpoint.manifest().files)
    workers.emplace_back(checkpoint.verified(file.worker));
  std::vector<TensorInfo> model;
  for (const TensorInfo& tensor : workers.front().tensors()) {
    if (!tensor.name.starts_with(kPrefix)) continue;
    for (const SafetensorsReader& worker : workers) {
      const TensorInfo* const theirs = worker.find(tensor.name);
      if (theirs == nullptr || theirs->dtype != tensor.dtype || theirs->shape != tensor.shape) {
        throw Error(fmt::format("{}: tensor \"{}\" is not there with the dtype and shape that it has in {}",
                                worker.path(), tensor.name, workers.front().path()));
      }
    }
    model.push_back(tensor);
    model.back().name.erase(0, kPrefix.size());
  }
  if (model.empty())
    throw Error(workers.front().path() + ": holds no model: no tensor's name begins with model.");

  const std::string draft = out + ".tmp";
  SafetensorsWriter writer(draft, model,
                           {{"starling.step", std::to_string(checkpoint.manifest().step)},
                            {"starling.workers", std::to_string(workers.size())}});
  for (const TensorInfo& tensor : writer.tensors()) {
    std::vector<Bytes> values;
    for (const SafetensorsReader& worker : workers) {
      const TensorInfo& theirs = *worker.find(std::string(kPrefix) + tensor.name);
      worker.read(theirs, values.emplace_back(theirs.bytes()));
    }
    writer.write(consensus_of(tensor, values, workers.front().path()));
  }
  writer.finish();
  if (std::rename(draft.c_str(), out.c_str()) != 0) {
    throw Error(fmt::format("{}: cannot be put in place: {}", out, std::strerror(errno)));
  }
}

}  // namespace starling
