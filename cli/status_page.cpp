#include "cli/status_page.h"

#include <fmt/format.h>

#include "cli/chart.h"
#include "cli/page.h"

namespace starling::cli {

namespace {

constexpr const char* kStatusStyle = R"(
tr.late { background: #d9822b55; } tr.gone { opacity: 0.5; }
td:nth-child(-n+4), th:nth-child(-n+4), td:last-child, th:last-child { text-align: left; }
)";

// Text goes into the page as text only: names of hosts and scores are the run's.
constexpr const char* kStatusScript = R"(
const known = x => x !== null;
const number = (x, digits) => known(x) ? x.toFixed(digits) : '-';
const columns = [['worker', w => w.rank], ['host', w => w.host], ['process', w => w.process],
  ['late', w => w.late ? 'late' : ''], ['restarts', w => w.restarts], ['joins', w => w.joins],
  ['step', w => w.step], ['round', w => w.round],
  ['epoch', w => number(w.epoch, 2)], ['loss', w => number(w.loss, 4)],
  ['steps/s', w => number(w.steps_per_second, 2)],
  ['waiting', w => known(w.waiting_share) ? number(100 * w.waiting_share, 0) + ' %' : '-'],
  ['MB sent', w => known(w.bytes_sent) ? number(w.bytes_sent / 1e6, 1) : '-'],
  ['phase', w => w.phase ? `${w.phase.name} of step ${w.phase.step} for ${number(w.phase.seconds, 1)} s` : '-']];
function row(kind, cells) {
  const tr = document.createElement('tr');
  for (const cell of cells) tr.appendChild(document.createElement(kind)).textContent = cell ?? '-';
  return tr;
}
function figures(run) {
  const test = run.test;
  return [['run', run.state], ['scheme', run.scheme ? `${run.scheme} over ${run.topology}` : '-'],
    ['step', run.step], ['epoch', number(run.epoch, 2)], ['steps per second', number(run.steps_per_second, 2)],
    ['round', run.round], ['membership', run.membership],
    ['late', run.workers.filter(w => w.late).map(w =>
      `worker ${w.rank} on ${w.host}: ${w.phase.name} of step ${w.phase.step}`).join(', ') || 'nobody'],
    ...(test ? [['last test', `${test.score_name} ${number(test.score, 4)}, loss ${number(test.loss, 4)}, after step ${test.step}`],
      ['consensus distance', number(test.consensus_distance, 4)]] : [])];
}
function show(run) {
  document.getElementById('figures').replaceChildren(...figures(run).map(f => row('td', f)));
  document.getElementById('workers').replaceChildren(row('th', columns.map(c => c[0])), ...run.workers.map(w => {
    const tr = row('td', columns.map(c => c[1](w)));
    tr.className = w.late ? 'late' : w.process;
    return tr;
  }));
}
async function look() {
  const note = document.getElementById('note');
  try {
    const answer = await fetch('status.json');
    if (!answer.ok) throw new Error(await answer.text());
    show(await answer.json());
    note.textContent = `of ${new Date().toLocaleTimeString()}`;
  } catch (error) {
    note.textContent = `no new figures: ${error.message}`;
  }
  setTimeout(look, 2000);
}
look();
)";

}  // namespace

std::string status_page(const std::string& folder) {
  const std::string title = "Status of " + folder;
  return html_page(
      title, kStatusStyle,
      fmt::format("<h1>{}</h1>\n<table id=\"figures\"></table>\n<h2>Workers</h2>\n"
                  "<table id=\"workers\"></table>\n<p class=\"note\" id=\"note\"></p>\n"
                  "<noscript>This page needs scripts; /status.json and /metrics do not.</noscript>\n"
                  "<script>{}</script>\n",
                  escaped(title), kStatusScript));
}

}  // namespace starling::cli
