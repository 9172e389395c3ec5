#include "starling/models/generate.h"

#include <algorithm>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/topk.h>

#include "starling/core/error.h"

namespace starling {
namespace {

// One token by its logits, float [vocabulary].
std::int64_t draw(const at::Tensor& logits, const Sampling& sampling, const at::Generator& random) {
  if (sampling.temperature == 0) return logits.argmax().item<std::int64_t>();
  const std::int64_t vocabulary = logits.size(0);
  const std::int64_t k = sampling.top_k > 0 ? std::min(sampling.top_k, vocabulary) : vocabulary;
  const auto [best, tokens] = at::topk(logits, k);
  const at::Tensor chances = at::softmax(best / sampling.temperature, 0);
  return tokens[at::multinomial(chances, 1, false, random).item<std::int64_t>()].item<std::int64_t>();
}

}  // namespace

std::vector<std::int64_t> generate(Gpt2& model, std::vector<std::int64_t> prompt, std::int64_t count,
                                   const Sampling& sampling) {
  if (prompt.empty()) throw UsageError("generate: the prompt has no token");
  const auto context = static_cast<std::size_t>(model.options().context);
  const auto random = at::make_generator<at::CPUGeneratorImpl>(sampling.seed);
  std::vector<std::int64_t> text = std::move(prompt);  // all tokens
  const std::size_t begin = text.size();
  const at::Device device = model.parameters().front().device();
  Gpt2Cache cache;
  std::size_t read = text.size() - std::min(text.size(), context);  // tokens of the text in the model
  while (std::ssize(text) < static_cast<std::int64_t>(begin) + count) {
    if (cache.size + static_cast<std::int64_t>(text.size() - read) > model.options().context) {
      cache.size = 0;
      read = text.size() - std::max<std::size_t>(context / 2, 1);
    }
    const at::Tensor next = at::tensor(at::ArrayRef(text).slice(read), at::kLong).unsqueeze(0).to(device);
    const at::Tensor logits = model.forward(next, cache)[0][-1].cpu();
    read = text.size();
    const std::int64_t token = draw(logits, sampling, random);
    if (token == sampling.end) break;
    text.push_back(token);
  }
  return {text.begin() + static_cast<std::ptrdiff_t>(begin), text.end()};
}

}  // namespace starling
