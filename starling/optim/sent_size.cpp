#include "starling/optim/sent_size.h"

#include <ATen/ops/empty.h>

#include "starling/optim/options.h"
#include "starling/optim/schemes/scheme.h"

namespace starling {

Contents contents_of(const Options& options) {
  const SchemeTraits& traits = scheme_of(options).traits;
  Contents contents = traits.contents;
  contents.wire = options.wire;
  contents.jump_guard = options.jump_guard;
  if (traits.wire_values == nullptr) contents.one_in = options.one_in;  // else wire_values() has chosen
  return contents;
}

std::size_t values_of(const Block& block, const Schedule& schedule, const Options& options) {
  const SchemeTraits& traits = scheme_of(options).traits;
  return traits.wire_values != nullptr ? traits.wire_values(block, schedule, options)
                                       : static_cast<std::size_t>(block.length);
}

int steps_between_exchanges(const Options& options) {
  const SchemeInfo& info = scheme_of(options);
  return options.every * (info.steps == nullptr ? 1 : info.steps(SchemeSettings(options.scheme)));
}

bool depends_on_shapes(const Options& options) { return scheme_of(options).traits.wire_values != nullptr; }

SentSize sent_size(const Block& block, const Schedule& schedule, const Options& options) {
  const Contents contents = contents_of(options);
  const Layout layout(contents, {values_of(block, schedule, options)}, 1);
  // So many rounds choose each value once.
  const auto turns = static_cast<std::uint64_t>(contents.one_in);
  SentSize size;
  for (std::uint64_t round = 1; round <= turns; ++round) {
    size.block += static_cast<double>(layout.bytes({round, 0}));
    size.mean += static_cast<double>(bytes_of(Wire::fp32, layout.values({round, 0})));
  }
  size.block /= static_cast<double>(turns);
  size.mean /= static_cast<double>(turns);
  return size;
}

Block as_one_block(std::span<const at::Tensor> parameters) {
  Block block;
  for (const at::Tensor& parameter : parameters) {
    block.segments.push_back({.parameter = parameter, .length = parameter.numel(), .offset = block.length});
    block.length += parameter.numel();
  }
  return block;
}

Block typical_block() {
  const at::Tensor matrix =
      at::empty({kTypicalSide, kTypicalSide}, at::TensorOptions(at::kFloat).device(at::kMeta));
  return as_one_block({{matrix}});
}

}  // namespace starling
