#include "starling/checkpoint/consensus.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/core/input.h"
#include "starling/core/text.h"
#include "starling/kernels/wire.h"

namespace starling {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::string_view kPrefix = "model.";
constexpr std::string_view kMaster = "master.";

// For dtypes of two bytes; nothing for any other dtype.
std::optional<Wire> narrow_format(const TensorInfo& tensor) {
  if (tensor.dtype == "BF16") return Wire::bf16;
  if (tensor.dtype == "F16") return Wire::fp16;
  return std::nullopt;
}

// Reads F16 and BF16 as F32.
Bytes read_wide(const SafetensorsReader& file, const TensorInfo& tensor) {
  Bytes bytes(tensor.bytes());
  file.read(tensor, bytes);
  const std::optional<Wire> narrow = narrow_format(tensor);
  if (!narrow) return bytes;
  const std::size_t n = bytes.size() / bytes_of(*narrow, 1);
  std::vector<float> values(n);
  kernels::decode(bytes.data(), *narrow, n, values.data());
  const auto wide = std::as_bytes(std::span(values));
  return {wide.begin(), wide.end()};
}

template <class T>
bool all_finite(const Bytes& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return std::ranges::all_of(values, [](T value) { return std::isfinite(value); });
}

// Integers always are. `wide`: as read_wide() gives them.
bool is_finite(const TensorInfo& tensor, const Bytes& wide) {
  if (tensor.dtype == "F32" || narrow_format(tensor)) return all_finite<float>(wide);
  return tensor.dtype != "F64" || all_finite<double>(wide);
}

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
    // Equal ones stay what they are, whatever their sum would round to.
    if (std::ranges::all_of(values, [&](T value) { return value == values.front(); })) return values.front();
    double sum = 0;
    for (const T value : values) sum += value;
    return static_cast<T>(sum / static_cast<double>(values.size()));
  });
}

template <class T>
Bytes largest(const std::vector<Bytes>& workers) {
  return combine<T>(workers, [](std::span<const T> values) { return std::ranges::max(values); });
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
      fmt::format("{}: tensor {} is {}; allowed are F64, F32, F16 and BF16, which are averaged, and "
                  "integers, of which the maximum is taken",
                  path, short_of(tensor.name), type));
}

// The average of push-sum is weighted, and only the optimizer knows which values each weight
// belongs to.
void check_weights(const SafetensorsReader& worker) {
  const TensorInfo* const weights = worker.find("weights");
  if (weights == nullptr || weights->dtype != "F64") return;
  std::vector<double> values(weights->bytes() / sizeof(double));
  worker.read(*weights, std::as_writable_bytes(std::span(values)));
  for (const double weight : values) {
    if (std::abs(weight - 1) > 1e-6)
      throw Error(
          fmt::format("{}: with push-sum a part of it has weight {:g}: only a run that resumes from this "
                      "checkpoint can compute the average model",
                      worker.path(), weight));
  }
}

// The recipe of the run, as TOML.
std::string recipe_text(const Manifest& manifest) {
  std::map<std::string, std::string> sections;
  for (const auto& [key, value] : manifest.recipe) {
    const std::size_t dot = key.find('.');
    sections[key.substr(0, dot)] += fmt::format("{} = {}\n", key.substr(dot + 1), value);
  }
  std::string text;
  for (const auto& [section, keys] : sections) text += fmt::format("[{}]\n{}", section, keys);
  return text;
}

}  // namespace

AverageModel::AverageModel(const Checkpoint& checkpoint, const Log& log)
    : step_(checkpoint.manifest().step), recipe_(recipe_text(checkpoint.manifest())) {
  for (const WorkerFile& file : checkpoint.manifest().files)
    workers_.emplace_back(checkpoint.verified(file.worker));
  for (const SafetensorsReader& worker : workers_) check_weights(worker);
  const SafetensorsReader& first = workers_.front();
  for (const TensorInfo& own : first.tensors()) {
    if (!own.name.starts_with(kPrefix)) continue;
    const std::string name = own.name.substr(kPrefix.size());
    const bool narrow = narrow_format(own).has_value();
    // The tensor of fp32 that stands for it, or null.
    const auto instead = [&](const std::string& prefix) {
      const TensorInfo* const found = first.find(prefix + name);
      return found != nullptr && found->dtype == "F32" && found->shape == own.shape ? found : nullptr;
    };
    const TensorInfo* source = instead(kMovingAverage);
    if (source == nullptr && narrow) source = instead(std::string(kMaster));
    const TensorInfo& tensor = source != nullptr ? *source : own;
    for (const SafetensorsReader& worker : workers_) {
      const TensorInfo* const theirs = worker.find(tensor.name);
      if (theirs == nullptr || theirs->dtype != tensor.dtype || theirs->shape != tensor.shape) {
        throw Error(fmt::format("{}: there is no tensor {} with the dtype and shape that it has in {}",
                                worker.path(), short_of(tensor.name), first.path()));
      }
    }
    tensors_.push_back({.name = name, .dtype = narrow ? "F32" : tensor.dtype, .shape = own.shape});
    sources_[name] = tensor.name;
  }
  if (tensors_.empty()) throw Error(first.path() + ": holds no model: no tensor's name begins with model.");
  leave_out(log);
}

void AverageModel::leave_out(const Log& log) {
  std::map<std::size_t, std::string> out;  // worker -> the first tensor that shows it
  for (const TensorInfo& tensor : tensors_) {
    std::vector<std::size_t> not_finite;
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      const TensorInfo& source = *workers_[i].find(sources_.at(tensor.name));
      if (!is_finite(source, read_wide(workers_[i], source))) not_finite.push_back(i);
    }
    if (not_finite.size() == workers_.size()) continue;  // on purpose, as a mask
    for (const std::size_t i : not_finite) out.emplace(i, tensor.name);
  }
  if (out.size() == workers_.size())
    throw Error(
        fmt::format("{}: there is no average model: of each worker some tensor is not finite, here {}",
                    workers_.front().path(), short_of(out.begin()->second)));
  std::vector<SafetensorsReader> counted;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const auto found = out.find(i);
    if (found == out.end()) {
      counted.push_back(std::move(workers_[i]));
    } else {
      log(Level::warning,
          fmt::format("{}: left out of the average model, because its tensor {} is not finite",
                      workers_[i].path(), short_of(found->second)));
    }
  }
  workers_ = std::move(counted);
}

std::vector<std::byte> AverageModel::read(const TensorInfo& tensor) const {
  std::vector<Bytes> values;
  for (const SafetensorsReader& worker : workers_)
    values.push_back(read_wide(worker, *worker.find(sources_.at(tensor.name))));
  return consensus_of(tensor, values, workers_.front().path());
}

Metadata AverageModel::metadata() const {
  Metadata metadata{{"starling.step", std::to_string(step_)},
                    {"starling.workers", std::to_string(workers_.size())}};
  if (!recipe_.empty()) metadata[kRecipe] = recipe_;
  return metadata;
}

void write_consensus(const AverageModel& model, const std::string& out) {
  const std::string draft = out + ".tmp";
  File file = File::to_write(draft);
  try {
    SafetensorsWriter writer(std::move(file), model.tensors(), model.metadata());
    for (const TensorInfo& tensor : writer.tensors())
      writer.write(named_input([&] { return model.read(tensor); }));
    writer.finish();
    if (std::rename(draft.c_str(), out.c_str()) != 0)
      throw Error(fmt::format("{}: cannot be put in place: {}", out, std::strerror(errno)));
  } catch (const Error&) {
    std::remove(draft.c_str());
    throw;
  }
}

}  // namespace starling
