#include "starling/optim/average.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros_like.h>
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
  const at::Tensor real = tensor.is_complex() ? at::view_as_real(tensor.resolve_conj()) : tensor;
  return real.resolve_neg();
}

using Indices = std::vector<std::size_t>;  // of tensors

// The numbers of one tensor, in order.
template <class T>
at::Tensor numbers_of(const at::Tensor& tensor) {
  return as_real(tensor).to(at::kCPU, c10::CppTypeToScalarType<T>::value).contiguous();
}

template <class T>
void append(std::vector<T>& all, const at::Tensor& numbers) {
  all.insert(all.end(), numbers.const_data_ptr<T>(), numbers.const_data_ptr<T>() + numbers.numel());
}

template <class T>
void set_numbers(const at::Tensor& tensor, const T* values) {
  const at::Tensor dense = at::empty(as_real(tensor).sizes(), c10::CppTypeToScalarType<T>::value);
  std::copy_n(values, dense.numel(), dense.mutable_data_ptr<T>());
  tensor.copy_(tensor.is_complex() ? at::view_as_complex(dense) : dense);
}

std::set<int> mean(Exchange& exchange, std::span<float> values) { return exchange.average(values); }
std::set<int> mean(Exchange& exchange, std::span<double> values) { return exchange.average_doubles(values); }

// The mean of the tensors `of`, each over the workers that give it: gives(its index, its numbers).
// The others send zeros, and the share of those that give it corrects the mean. A tensor that
// nobody gives keeps its values and goes to `missing`, on all workers alike.
template <class T, class Gives>
std::set<int> mean(Exchange& exchange, const std::vector<at::Tensor>& tensors, const Indices& of,
                   const Gives& gives, Indices& missing) {
  std::vector<T> all, shares;
  for (const std::size_t i : of) {
    const at::Tensor numbers = numbers_of<T>(tensors[i]);
    shares.push_back(gives(i, numbers) ? 1 : 0);
    append(all, shares.back() == 1 ? numbers : at::zeros_like(numbers));
  }
  const std::size_t end = all.size();
  all.insert(all.end(), shares.begin(), shares.end());
  std::set<int> workers = mean(exchange, std::span<T>(all));
  if (workers.empty()) return workers;
  T* values = all.data();
  for (std::size_t k = 0; k < of.size(); ++k) {
    const at::Tensor& tensor = tensors[of[k]];
    const T share = all[end + k];
    const std::int64_t n = as_real(tensor).numel();
    if (share != 1) std::for_each_n(values, n, [share](T& x) { x /= share; });
    if (share != 0) set_numbers(tensor, values);
    if (share == 0) missing.push_back(of[k]);
    values += n;
  }
  return workers;
}

// The maximum of the tensors `of`, over the workers that count.
void maximum(Exchange& exchange, const std::vector<at::Tensor>& tensors, const Indices& of, bool counts) {
  std::vector<std::int64_t> all;
  for (const std::size_t i : of) append(all, numbers_of<std::int64_t>(tensors[i]));
  if (!counts) std::ranges::fill(all, std::numeric_limits<std::int64_t>::min());
  all.push_back(counts ? 1 : 0);
  exchange.maximum(all);
  if (all.back() == 0) return;
  const std::int64_t* values = all.data();
  for (const std::size_t i : of) {
    set_numbers(tensors[i], values);
    values += tensors[i].numel();
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
        : t.unsafeGetTensorImpl()->is_python_dispatch()      ? "a subclass that keeps its values elsewhere"
        : at::has_internal_overlap(t) == at::MemOverlap::Yes ? "expanded: values share memory"
                                                             : "";
    if (!fault.empty())
      throw UsageError(fmt::format(
          "{} {} is {}: to be averaged it must be dense, of real or complex numbers, integers or bool", what,
          i, fault));
  }
}

std::set<int> average(Exchange& exchange, const std::vector<at::Tensor>& tensors,
                      const AverageOptions& options) {
  std::map<at::ScalarType, Indices> of;
  for (std::size_t i = 0; i < tensors.size(); ++i) of[averaged_as(tensors[i])].push_back(i);
  Indices left_out, missing;
  const auto without_nan = [&](std::size_t i, const at::Tensor& numbers) {
    if (!options.counts) return false;
    if (!at::isnan(numbers).any().item<bool>()) return true;
    left_out.push_back(i);
    return false;
  };
  const auto all = [](std::size_t, const at::Tensor&) { return true; };
  const auto means = [&]<class T>(T) {
    const Indices& these = of[c10::CppTypeToScalarType<T>::value];
    Indices rest, none;
    std::set<int> workers = mean<T>(exchange, tensors, these, without_nan, rest);
    if (!rest.empty()) mean<T>(exchange, tensors, rest, all, none);
    missing.insert(missing.end(), rest.begin(), rest.end());
    return workers;
  };
  std::set<int> workers = means(float{});
  if (!of[at::kDouble].empty()) means(double{});
  if (!of[at::kLong].empty()) maximum(exchange, tensors, of[at::kLong], options.counts);
  std::erase_if(left_out, [&](std::size_t i) { return std::ranges::find(missing, i) != missing.end(); });
  if (!left_out.empty() && !workers.empty()) {
    const std::size_t more = left_out.size() - 1;
    options.log(Level::warning,
                fmt::format("average: {} {}{} has NaN at this worker, which gets the average of the others",
                            options.what, std::ranges::min(left_out),
                            more == 0 ? "" : fmt::format(" (and {} more)", more)));
  }
  return workers;
}

FiniteAverage average_finite(std::vector<float>& values, const std::function<bool(std::span<float>)>& average,
                             std::optional<bool> is_apart) {
  const bool finite = std::ranges::all_of(values, [](float x) { return std::isfinite(x); });
  const auto mean = [&](bool counts) {
    FiniteAverage result{.finite = finite, .counts = counts};
    if (!counts) std::ranges::fill(values, 0.0F);
    values.push_back(counts ? 1 : 0);
    result.alone = !average(values);
    if (!result.alone) result.share = values.back();
    values.pop_back();
    if (result.share != 0 && result.share != 1)
      std::ranges::for_each(values, [&](float& x) { x /= result.share; });
    return result;
  };
  const bool sound = finite && !is_apart.value_or(false);
  const std::vector<float> own = finite && !sound ? values : std::vector<float>();
  const FiniteAverage result = mean(sound);
  if (!is_apart || result.alone || result.share != 0) return result;
  if (finite) values = own;  // nobody counts, and all workers see that
  return mean(finite);
}

int average(const std::vector<at::Tensor>& tensors, const World& world) {
  const c10::AutoGradMode no_gradient(false);
  check_averaged("tensor", tensors);
  Terms terms;
  add_tensors(terms, "tensor", tensors);
  const std::string channel = fmt::format("average-{}", (*world.optimizers)++);
  Gathering all(world, channel);
  agree(all, terms);
  return static_cast<int>(average(all.exchange(), tensors, {.log = world.log}).size());
}

}  // namespace starling
