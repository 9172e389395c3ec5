#include "starling/optim/blocks.h"

#include <algorithm>
#include <map>
#include <utility>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/optim/optimizer.h>

#include "starling/core/error.h"
#include "starling/optim/pass.h"
#include "starling/optim/rule_step.h"

namespace starling {
namespace {

constexpr std::int64_t kLeastBlock = 256 * 1024;  // bytes
constexpr std::int64_t kLine = 16;                // floats of a cache line

std::int64_t rounded_up(std::int64_t n, std::int64_t step) { return (n + step - 1) / step * step; }

struct Type {
  at::ScalarType type;
  Wire format;
  const char* name;
};
constexpr Type kTypes[] = {{at::kFloat, Wire::fp32, "float32"},
                           {at::kBFloat16, Wire::bf16, "bfloat16"},
                           {at::kHalf, Wire::fp16, "float16"}};

// Null: parameters of this type are not allowed.
const Type* type_of(const at::Tensor& tensor) {
  const auto* const found = std::ranges::find(kTypes, tensor.scalar_type(), &Type::type);
  return found == std::end(kTypes) ? nullptr : found;
}

const char* type_name(Wire format) { return std::ranges::find(kTypes, format, &Type::format)->name; }

// The device of earlier blocks on it, or a new one.
std::shared_ptr<Device> device_of(const std::vector<Block>& blocks, at::Device device) {
  for (const Block& block : blocks) {
    if (block.device == device) return block.on_device->device();
  }
  return cuda_device(device);
}

}  // namespace

void check_parameter(const at::Tensor& p, std::size_t group, std::size_t index) {
  const auto refuse = [&](const std::string& what) {
    throw UsageError(
        fmt::format("parameter {} of group {} is {}: parameters must be {}", index, group, what,
                    "float32, bfloat16 or float16 on the CPU or a CUDA device and dense in memory "
                    "(contiguous or channels_last)"));
  };
  if (!p.defined()) refuse("undefined");
  if (!p.is_leaf()) refuse("computed from other tensors");
  if (type_of(p) == nullptr) refuse(c10::toString(p.scalar_type()));
  if (!p.device().is_cpu() && !p.device().is_cuda()) refuse("on " + p.device().str());
  if (!p.is_non_overlapping_and_dense()) refuse("a strided view of other memory");
  if (p.is_neg()) refuse("a view whose values are negated when they are read");
}

namespace {

// Whether the values lie in memory in the same order. The stride of a dimension of size 1 does not
// matter.
bool lies_as(const at::Tensor& one, const at::Tensor& other) {
  const at::IntArrayRef sizes = one.sizes(), wanted = other.sizes();
  const at::IntArrayRef strides = one.strides(), others = other.strides();
  if (sizes.size() != wanted.size()) return false;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] != wanted[d] || (sizes[d] > 1 && strides[d] != others[d])) return false;
  }
  return true;
}

// Parameters are leaves. Tensor::grad() would look for that each time, to warn of another tensor.
const at::Tensor& gradient_of(const at::Tensor& parameter) {
  return std::as_const(*parameter.unsafeGetTensorImpl()).grad();
}

// Whether the gradient's memory has its values as the parameter's memory has its own. The imaginary
// part of a complex number can be a view whose values are negated when torch reads them.
bool is_readable_as(const at::Tensor& gradient, const at::Tensor& parameter) {
  return lies_as(gradient, parameter) && !gradient.is_neg();
}

std::string layout_text(const at::Tensor& tensor) {
  return fmt::format("[{}] with strides {}", fmt::join(tensor.sizes(), ", "),
                     fmt::join(tensor.strides(), ","));
}

}  // namespace

void Segment::check() const {
  const Type* const type = type_of(parameter);
  if (type == nullptr || type->format != format) {
    throw UsageError(
        fmt::format("a parameter [{}] was {} when the optimizer was made and is {} now: it must stay {}",
                    fmt::join(parameter.sizes(), ", "), type_name(format),
                    c10::toString(parameter.scalar_type()), type_name(format)));
  }
  if (layout.defined() && !lies_as(parameter, layout)) {
    throw UsageError(
        fmt::format("a parameter was {} when the optimizer was made and is {} now: its sizes and memory "
                    "order must stay, so change them before",
                    layout_text(layout), layout_text(parameter)));
  }
}

void Segment::check_gradient() const {
  check();
  const at::Tensor& g = gradient_of(parameter);
  if (!g.defined()) return;
  const bool dense = g.layout() == at::kStrided;
  if (dense && g.scalar_type() == parameter.scalar_type() && g.sizes() == parameter.sizes()) return;
  throw UsageError(fmt::format(
      "a gradient is {}{} [{}] for a parameter {} [{}]: it must be dense {} of equal sizes",
      dense ? "" : "sparse ", c10::toString(g.scalar_type()), fmt::join(g.sizes(), ", "),
      c10::toString(parameter.scalar_type()), fmt::join(parameter.sizes(), ", "), type_name(format)));
}

kernels::Parameters Segment::values() const {
  const kernels::Parameters all{parameter.mutable_data_ptr(), format, nullptr};
  return {all.from(static_cast<std::size_t>(begin)).values, format,
          master.defined() ? master.mutable_data_ptr<float>() : nullptr};
}

void Segment::mark_changed() {
  parameter.unsafeGetTensorImpl()->bump_version();
  ++*passes;
  as_sent = {};
}

void Segment::mark_sent(const void* x, const void* sent) {
  // inference tensors have no version
  if (!parameter.is_inference()) as_sent = {sent, x, version()};
}

const void* Segment::still_in(const void* x) const {
  const bool same = as_sent.block != nullptr && as_sent.x == x && as_sent.version == version();
  return same ? as_sent.block : nullptr;
}

std::uint32_t Segment::version() const {
  return parameter.unsafeGetTensorImpl()->version_counter().current_version() - *passes;
}

const void* Segment::gradient(at::Tensor& keep) const {
  const at::Tensor& g = gradient_of(parameter);
  if (!g.defined()) return nullptr;
  keep = is_readable_as(g, parameter) ? g : at::empty_like(parameter).copy_(g);
  return static_cast<const std::byte*>(keep.const_data_ptr()) +
         bytes_of(format, static_cast<std::size_t>(begin));
}

void* Segment::mutable_gradient() const {
  at::Tensor& g = parameter.mutable_grad();
  if (!g.defined()) {
    g = at::zeros_like(parameter);  // another segment may write nothing
  } else if (!is_readable_as(g, parameter)) {
    g = at::empty_like(parameter);
  }
  g.unsafeGetTensorImpl()->bump_version();
  return static_cast<std::byte*>(g.mutable_data_ptr()) + bytes_of(format, static_cast<std::size_t>(begin));
}

void Block::keep(int count) {
  states.clear();
  for (int k = 0; k < count; ++k) {
    const std::int64_t length = k == 0 ? state_length : later_length;
    states.push_back(at::zeros({length}, at::TensorOptions(at::kFloat).device(device)));
  }
}

at::Tensor Block::state_of(const Segment& segment, std::size_t k) const {
  if (k > 0 && segment.whole) return {};
  return states[k].narrow(0, segment.state, segment.length);
}

namespace {

// Throws UsageError if two parameters share memory: its values would be mixed and updated twice.
void check_apart(const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  struct Memory {
    const std::byte *begin, *end;
    std::size_t group, index;
  };
  std::vector<Memory> all;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (std::size_t p = 0; p < groups[g].params().size(); ++p) {
      const at::Tensor& parameter = groups[g].params()[p];
      if (parameter.numel() == 0) continue;
      const auto* const begin = static_cast<const std::byte*>(parameter.mutable_data_ptr());
      all.push_back({begin, begin + parameter.nbytes(), g, p});
    }
  }
  std::ranges::sort(all, {}, &Memory::begin);
  for (std::size_t k = 1; k < all.size(); ++k) {
    if (all[k].begin >= all[k - 1].end) continue;
    const auto [first, second] =
        std::minmax({std::pair(all[k - 1].group, all[k - 1].index), std::pair(all[k].group, all[k].index)});
    throw UsageError(
        fmt::format("parameter {} of group {} shares memory with parameter {} of group {}: make them one "
                    "parameter",
                    second.second, second.first, first.second, first.first));
  }
}

// Lays the states of whole matrices behind all others, so that later states end before them.
void place_states(Block& block) {
  for (const bool whole : {false, true}) {
    for (Segment& s : block.segments) {
      if (s.whole != whole) continue;
      s.state = block.state_length;
      block.state_length += rounded_up(s.length, kLine);
    }
    if (!whole) block.later_length = block.state_length;
  }
}

}  // namespace

void append_blocks(std::vector<Block>& blocks, const std::vector<torch::optim::OptimizerParamGroup>& groups,
                   std::size_t first_group, std::int64_t block_bytes, Wire wire, bool undivided) {
  std::int64_t total = 0;
  std::map<const void*, std::pair<std::size_t, std::size_t>> seen;  // group and index
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (std::size_t p = 0; p < groups[g].params().size(); ++p) {
      const at::Tensor& parameter = groups[g].params()[p];
      if (g >= first_group) check_parameter(parameter, g, p);
      const auto [before, fresh] = seen.try_emplace(parameter.unsafeGetTensorImpl(), g, p);
      if (!fresh) {
        throw UsageError(
            fmt::format("parameter {} of group {} is parameter {} of group {} again: give it once", p, g,
                        before->second.second, before->second.first));
      }
      if (g >= first_group) total += parameter.numel();
    }
  }
  check_apart(groups);
  const auto size = static_cast<std::int64_t>(sizeof(float));
  const std::int64_t step = wire == Wire::int4 ? 2 : 1;  // segments begin at multiples of this
  const std::int64_t limit =
      std::max(kLeastBlock, std::min(block_bytes, total * size / 8)) / size / step * step;
  const std::size_t first_block = blocks.size();
  for (std::size_t g = first_group; g < groups.size(); ++g) {
    bool fresh = true;  // a block holds segments of one group
    for (const at::Tensor& parameter : groups[g].params()) {
      const at::Tensor layout = at::empty_like(parameter, parameter.options().device(at::kMeta));
      const auto passes = std::make_shared<std::uint32_t>(0);
      const bool whole = takes_whole(groups[g], parameter);
      const bool in_one = whole || (undivided && parameter.dim() > 1);
      const std::int64_t least = in_one ? parameter.numel() : 1;  // to be in one block
      for (std::int64_t begin = 0; begin < parameter.numel();) {
        if (fresh || blocks.back().length + least > limit || blocks.back().device != parameter.device()) {
          Block next{.index = static_cast<int>(blocks.size()), .group = static_cast<int>(g)};
          next.device = parameter.device();
          if (!next.device.is_cpu()) next.on_device = device_of(blocks, next.device)->passes();
          blocks.push_back(std::move(next));
          fresh = false;
        }
        Block& block = blocks.back();
        const std::int64_t length =
            in_one ? parameter.numel() : std::min(parameter.numel() - begin, limit - block.length);
        const Wire format = type_of(parameter)->format;
        const at::Tensor master =
            format == Wire::fp32 ? at::Tensor()
                                 : at::zeros({length}, at::TensorOptions(at::kFloat).device(block.device));
        block.segments.push_back({.parameter = parameter,
                                  .layout = layout,
                                  .begin = begin,
                                  .length = length,
                                  .offset = block.length,
                                  .format = format,
                                  .master = master,
                                  .whole = whole,
                                  .passes = passes});
        block.length += rounded_up(length, step);
        begin += length;
      }
    }
  }
  for (std::size_t b = first_block; b < blocks.size(); ++b) {
    place_states(blocks[b]);
    if (is_modular(wire)) blocks[b].grid = Grid(wire);
  }
}

std::vector<at::Tensor> parameters_of(const std::vector<Block>& blocks) {
  std::vector<at::Tensor> parameters;
  for (const Block& block : blocks) {
    for (const Segment& s : block.segments) {
      if (s.begin == 0) parameters.push_back(s.parameter);
    }
  }
  return parameters;
}

std::vector<std::vector<std::size_t>> holders_of(const std::vector<Block>& blocks) {
  std::vector<std::vector<std::size_t>> holders;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    for (const Segment& s : blocks[b].segments) {
      if (s.begin == 0) holders.emplace_back();  // same order as parameters_of()
      holders.back().push_back(b);
    }
  }
  return holders;
}

Masters with_masters(std::span<Block> blocks) {
  Masters all;
  for (Block& block : blocks) {
    bool any = false;
    for (Segment& s : block.segments) {
      if (!s.master.defined()) continue;
      all[s.parameter.unsafeGetTensorImpl()].push_back(&s);
      any = true;
    }
    if (any) mix(block, {}, {});
  }
  return all;
}

at::Tensor stretch(const at::Tensor& dense, std::int64_t begin, std::int64_t length) {
  return dense.as_strided({dense.numel()}, {1}).narrow(0, begin, length);
}

at::Tensor joined_masters(const std::vector<Segment*>& segments) {
  const at::Tensor joined = at::empty_like(segments.front()->parameter, at::kFloat);
  for (const Segment* const s : segments) stretch(joined, s->begin, s->length).copy_(s->master);
  return joined;
}

void set_masters(const std::vector<Segment*>& segments, const at::Tensor& joined) {
  for (const Segment* const s : segments) s->master.copy_(stretch(joined, s->begin, s->length));
}

}  // namespace starling
