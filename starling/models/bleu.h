// BLEU of translations (Papineni et al. 2002), over tokens.
//
//   BLEU = min(1, exp(1 - r / t)) (p_1 p_2 p_3 p_4)^(1/4)
//
// p_n is the share of the translations' n-grams that are in their reference, each of them as often
// as it is there. t and r are the tokens of all translations and of all references.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace starling {

// The sums that BLEU is made of. They add up over sentences.
inline constexpr std::size_t kBleuCounts = 10;

// Adds one translation's to `counts`, which has kBleuCounts of them.
void count_bleu(std::span<const std::int64_t> translation, std::span<const std::int64_t> reference,
                std::span<std::int64_t> counts);
// From 0 to 1. It is 0 if no n-gram of some length is right.
double bleu(std::span<const std::int64_t> counts);

}  // namespace starling
