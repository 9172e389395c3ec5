// The other parts of crossing a link beside the number formats (format.h): their names, and
// conversions of whole arrays.
#pragma once

#include <cstddef>
#include <string_view>

#include "starling/kernels/format.h"

namespace starling {

std::string_view name_of(Wire wire);
// Throws UsageError, and lists the known names.
Wire wire_named(std::string_view name);

namespace kernels {

// Converts n values of fp32, bf16 or fp16 to floats, and back. (For code that does nothing else
// with them; the update converts on the fly.)
void decode(const void* values, Wire format, std::size_t n, float* to);
void encode(const float* values, std::size_t n, Wire format, void* to);

}  // namespace kernels
}  // namespace starling
