// Models that others have trained.
#include "starling/train/trained.h"

#include "starling/core/error.h"
#include "starling/optim/checkpoint.h"
#include "tests/folder.h"
#include "tests/models/tiny_gpt2.h"
#include "tests/refusal.h"

namespace starling {
namespace {

using at::Tensor;
using testing::HasSubstr;

// As Hugging Face has GPT-2's weights: without the first name, and with the causal masks.
std::map<std::string, Tensor> as_published(const Gpt2& model) {
  constexpr std::string_view kPrefix = "transformer.";
  std::map<std::string, Tensor> all;
  for (const auto& parameter : model.named_parameters())
    all.emplace(parameter.key().substr(kPrefix.size()), parameter.value().detach().clone());
  for (const std::string layer : {"h.0", "h.1"})
    all.emplace(layer + ".attn.bias", at::ones({1, 1, model.options().context, model.options().context}));
  return all;
}

TEST(TrainedModel, ReadsGpt2AsItIsPublished) {
  const Folder folder;
  const std::string path = folder / "gpt2.safetensors";
  const Log log = [](Level, const std::string&) {};
  const auto theirs = testing_models::tiny(), ours = std::make_shared<Gpt2>(testing_models::kTiny);
  auto tensors = as_published(*theirs);
  save_tensors(path, tensors, {});
  TrainedModel(path, log).load_into(*ours);
  const Tensor tokens = at::arange(6).unsqueeze(0);
  EXPECT_TRUE(at::equal(ours->forward(tokens), theirs->forward(tokens)));

  tensors.emplace("transformer.wte.weight", tensors.at("wte.weight").clone());
  save_tensors(path, tensors, {});
  EXPECT_THAT(refusal<UsageError>([&] { TrainedModel(path, log).check(*ours); }),
              HasSubstr("tensor \"transformer.wte.weight\" is there twice, by two names"));
  tensors.erase("transformer.wte.weight");
  tensors.erase("h.1.ln_1.bias");
  save_tensors(path, tensors, {});
  EXPECT_THAT(
      refusal<UsageError>([&] { TrainedModel(path, log).check(*ours); }),
      HasSubstr("there is no tensor \"transformer.h.1.ln_1.bias\", which the model of the recipe has"));
}

}  // namespace
}  // namespace starling
