// Users of a store that was lost (StoreLost) ask it again after this pause.
#pragma once

#include <chrono>

namespace starling {

constexpr std::chrono::milliseconds kAskStoreAgain{1'000};

}  // namespace starling
