#include "starling/optim/agreement.h"

#include <exception>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starling/core/crc32c.h"
#include "starling/core/error.h"
#include "starling/exchange/exchange.h"
#include "starling/optim/gathering.h"
#include "starling/optim/optimizer.h"

namespace starling {

namespace {

// Whether the terms are the same on all workers, by a checksum. maximum: of all of them.
bool same_on_all(const Terms& terms, const std::function<void(std::span<std::int64_t>)>& maximum) {
  const auto sum = static_cast<std::int64_t>(checksum_of(terms));
  std::int64_t most_and_least[]{sum, -sum};
  maximum(most_and_least);
  return most_and_least[0] == -most_and_least[1];
}

}  // namespace

void agree(Gathering& all, const Terms& mine) {
  if (same_on_all(mine, [&](auto values) { all.maximum(values); })) return;
  const auto everyone = all.texts(to_text(mine));
  const auto first = static_cast<std::size_t>(all.members().front());
  const Terms reference = read_terms(everyone[first], first);
  for (const int member : all.members()) {
    const auto rank = static_cast<std::size_t>(member);
    const std::string found = difference(reference, first, read_terms(everyone[rank], rank), rank);
    if (!found.empty())
      throw UsageError(fmt::format("the workers differ in {}; it must be the same on all", found));
  }
}

void add_tensors(Terms& terms, const std::string& what, const std::vector<at::Tensor>& tensors) {
  terms.emplace_back(fmt::format("number of {}s", what), std::to_string(tensors.size()));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    terms.emplace_back(
        fmt::format("{} {}", what, i),
        fmt::format("{} {}", c10::toString(tensors[i].scalar_type()), fmt::join(tensors[i].sizes(), "x")));
  }
}

void agree(Exchange& exchange, const Terms& mine) {
  const auto maximum = [&](auto values) { exchange.maximum(values); };
  if (same_on_all(mine, maximum)) return;
  for (const auto& [name, value] : mine) {
    if (!same_on_all({{name, value}}, maximum))
      throw UsageError(
          fmt::format("the workers differ in {}: {} on this one; it must be the same on all", name, value));
  }
}

std::uint32_t checksum_of(const Terms& terms) {
  const std::string text = to_text(terms);
  return crc32c(std::as_bytes(std::span(text)));
}

std::uint32_t checksum_of(const std::vector<at::Tensor>& tensors) {
  std::uint32_t checksum = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.is_meta() || tensor.layout() != at::kStrided) continue;
    const at::Tensor here = tensor.cpu();
    const at::Tensor dense = here.is_non_overlapping_and_dense() ? here : here.contiguous();
    checksum = crc32c({static_cast<const std::byte*>(dense.const_data_ptr()), dense.nbytes()}, checksum);
  }
  return checksum;
}

void make_equal(Gathering& all, const std::vector<at::Tensor>& tensors) {
  all.spread(tensors);
  agree(all, {{fmt::format("the copy of worker {}'s parameters", all.members().front()),
               fmt::format("checksum {:08x}", checksum_of(tensors))}});
}

void together(Optimizer& optimizer, const std::string& what, const std::function<void()>& own) {
  std::exception_ptr error;
  try {
    own();
  } catch (const Error&) {
    error = std::current_exception();
  }
  std::int64_t failed = error ? optimizer.world().rank + 1 : 0;
  optimizer.maximum({&failed, 1});
  if (error) std::rethrow_exception(error);
  if (failed != 0) throw Error(fmt::format("worker {} could not {}", failed - 1, what));
}

}  // namespace starling
