// Fewer repetitions under a sanitizer, which makes a program ten times as slow.
#pragma once

namespace starling {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace starling
