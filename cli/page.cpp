#include "cli/page.h"

#include <fmt/format.h>

#include "cli/chart.h"

namespace starling::cli {

namespace {

constexpr const char* kPageStyle = R"(
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 66em; margin: 2em auto; padding: 0 1em;
  color: var(--ink); background: var(--page); }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; } h3 { font-size: 1em; margin: 1.5em 0 0.3em; }
table { border-collapse: collapse; font-size: 0.9em; }
th, td { text-align: right; padding: 0.2em 0.6em; border-bottom: 1px solid var(--rule); }
svg { width: 100%; height: auto; }
.key { display: inline-block; width: 0.8em; height: 0.8em; margin: 0 0.3em 0 1em; background: var(--c); }
p.note { color: var(--soft); font-size: 0.9em; }
)";

}  // namespace

std::string html_page(const std::string& title, const std::string& style, const std::string& body) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width\"/>\n<title>{}</title>\n"
      "<style>{}{}{}</style>\n</head>\n<body>\n{}</body>\n</html>\n",
      escaped(title), chart_style(), kPageStyle, style, body);
}

}  // namespace starling::cli
