// The part of the standard library that files for both GPU and processor use. NVRTC has none of its
// headers: this file replaces <algorithm>, <bit>, <cmath>, <cstddef>, <cstdint> and <cstdlib>
// there.
#pragma once

namespace std {

using size_t = decltype(sizeof 0);
using int32_t = int;
using int64_t = long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long;
using uintptr_t = unsigned long;
enum class byte : unsigned char {};

template <class To, class From>
constexpr To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, from);
}
template <class T>
constexpr const T& min(const T& a, const T& b) {
  return b < a ? b : a;
}
template <class T>
constexpr const T& max(const T& a, const T& b) {
  return a < b ? b : a;
}

// The device's functions.
using ::abs;
using ::pow;
using ::sqrt;

}  // namespace std
