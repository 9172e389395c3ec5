// A manifest as JSON. Apart from manifest.h, whose users need no JSON library.
#pragma once

#include <nlohmann/json.hpp>

#include "starling/checkpoint/manifest.h"

namespace starling {

// All of manifest.json but the checksum of its text.
nlohmann::ordered_json manifest_json(const Manifest& manifest);

}  // namespace starling
