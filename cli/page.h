// HTML pages that load nothing from elsewhere, readable on light and dark screens.
#pragma once

#include <string>

namespace starling::cli {

// A whole page, which is well-formed XML if the body is. `title` is text; `style` is added to the
// style of pages and charts; `body` is HTML.
std::string html_page(const std::string& title, const std::string& style, const std::string& body);

}  // namespace starling::cli
