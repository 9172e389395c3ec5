#include "starling/optim/average.h"

#include <algorithm>
#include <cstdint>

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/optim/agreement.h"
#include "starling/optim/gathering.h"
#include "starling/optim/optimizer.h"

namespace starling {
namespace {

// The type in which the tensor's numbers are averaged.
at::ScalarType averaged_as(const at::Tensor& tensor) {
  const at::ScalarType real = c10::toRealValueType(tensor.scalar_type());
  if (!c10::isFloatingType(real)) return at::kLong;
  return real == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor as_real(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor.resolve_conj()) : tensor;
}

// The numbers of all tensors that are averaged as T, one after the other.
template <class T>
std::vector<T> numbers_of(const std::vector<at::Tensor>& tensors) {
  constexpr at::ScalarType type = c10::CppTypeToScalarType<T>::value;
  std::vector<T> all;
  for (const at::Tensor& tensor : tensors) {
    if (averaged_as(tensor) != type) continue;
    const at::Tensor dense = as_real(tensor).to(at::kCPU, type).contiguous();
    all.insert(all.end(), dense.const_data_ptr<T>(), dense.const_data_ptr<T>() + dense.numel());
  }
  return all;
}

template <class T>
void set_numbers(const std::vector<at::Tensor>& tensors, const std::vector<T>& all) {
  constexpr at::ScalarType type = c10::CppTypeToScalarType<T>::value;
  const T* from = all.data();
  for (const at::Tensor& tensor : tensors) {
    if (averaged_as(tensor) != type) continue;
    const at::Tensor dense = at::empty(as_real(tensor).sizes(), type);
    std::copy_n(from, dense.numel(), dense.mutable_data_ptr<T>());
    from += dense.numel();
    tensor.copy_(tensor.is_complex() ? at::view_as_complex(dense) : dense);
  }
}

}  // namespace

void check_averaged(const std::string& what, const std::vector<at::Tensor>& tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& t = tensors[i];
    const std::string fault =
        !t.defined()                                         ? "undefined"
        : t.layout() != at::kStrided                         ? "sparse"
        : t.is_quantized() || t.scalar_type() == at::kUInt64 ? c10::toString(t.scalar_type())
        : at::has_internal_overlap(t) == at::MemOverlap::Yes ? "expanded: values share memory"
                                                             : "";
    if (!fault.empty())
      throw UsageError(fmt::format(
          "{} {} is {}: to be averaged it must be dense, of real or complex numbers, integers or bool", what,
          i, fault));
  }
}

std::set<int> average(Exchange& exchange, const std::vector<at::Tensor>& tensors) {
  auto floats = numbers_of<float>(tensors);
  auto doubles = numbers_of<double>(tensors);
  auto counts = numbers_of<std::int64_t>(tensors);
  const std::set<int> workers = exchange.average(floats);
  if (!doubles.empty()) exchange.average_doubles(doubles);
  if (!counts.empty()) exchange.maximum(counts);
  set_numbers(tensors, floats);
  set_numbers(tensors, doubles);
  set_numbers(tensors, counts);
  return workers;
}

int average(const std::vector<at::Tensor>& tensors, const World& world) {
  const c10::AutoGradMode no_gradient(false);
  check_averaged("tensor", tensors);
  Terms terms;
  add_tensors(terms, "tensor", tensors);
  const std::string channel = fmt::format("average-{}", (*world.optimizers)++);
  Gathering all(world, channel);
  agree(all, terms);
  return static_cast<int>(average(all.exchange(), tensors).size());
}

}  // namespace starling
