// What crosses a link beside the number formats themselves (format.h): their names, and whole arrays in them.
#pragma once

#include <cstddef>
#include <string_view>

#include "starling/kernels/format.h"

namespace starling {

std::string_view name_of(Wire wire);
// Throws UsageError, naming those that there are.
Wire wire_named(std::string_view name);

namespace kernels {

// n values of fp32, bf16 or fp16 as floats, and back. (What the update does on the way, where nothing else is done.)
void decode(const void* values, Wire format, std::size_t n, float* to);
void encode(const float* values, std::size_t n, Wire format, void* to);

}  // namespace kernels
}  // namespace starling
