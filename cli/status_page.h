// The page of `starling status --serve`: it shows /status.json, and asks for it every two seconds.
#pragma once

#include <string>

namespace starling::cli {

std::string status_page(const std::string& folder);

}  // namespace starling::cli
