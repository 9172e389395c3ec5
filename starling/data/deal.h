// The examples of an epoch, dealt to the workers.
//
// An epoch has an order of its items, the same on all workers. It is dealt evenly. The rest that
// does not fill a batch on every worker is left out of this epoch.
//
// A run may go on with another number of workers, also in the middle of an epoch. The items that
// the workers before have not drawn then stay in their order, and are dealt anew. So with any
// numbers of workers no item is drawn twice in an epoch. The later epochs are dealt as if the
// number had always been this one.
#pragma once

#include <cstdint>
#include <vector>

namespace starling {

// The draws of the workers in an earlier part of the run.
struct Drawn {
  std::vector<std::int64_t> batches;  // by each of them, in this part
  std::int64_t end = 0;               // the number of the first batch after it, on all workers
};

// One worker of several, and those before them if their number was another one.
struct Drawer {
  int rank = 0;
  int workers = 1;
  std::vector<Drawn> before{};
};

class Deal {
 public:
  enum class How {
    shards,  // each worker gets the items of one contiguous part, as many batches as the others
    turns,   // a batch is one item; the workers take one after the other
  };

  // `items` of an epoch, at least as many as a batch of each worker. Throws Error if the workers
  // before cannot have drawn so much.
  Deal(std::int64_t items, std::int64_t batch, Drawer who, How how = How::shards);

  const Drawer& who() const { return who_; }
  // Batches of this worker in an epoch that no worker before has begun.
  std::int64_t batches_per_epoch() const { return now_.whole(items_, batch_); }

  struct Place {
    std::int64_t epoch = 0;
    std::int64_t first = 0;  // of the batch, among the items of the epoch that leave_rest() leaves
  };
  // Batch 0, 1, .., counted on through the run. Those before first_number() were drawn before.
  Place place(std::int64_t number) const;
  std::int64_t first_number() const { return who_.before.empty() ? 0 : who_.before.back().end; }
  // The epoch of batch first_number().
  std::int64_t first_epoch() const { return place(first_number()).epoch; }
  // Removes from an epoch's order what the workers before have drawn.
  void leave_rest(std::int64_t epoch, std::vector<std::int64_t>& order) const;

  // How many epochs the workers before have drawn, in examples.
  double epochs_before() const;
  // This worker's batches from first_number() until so many epochs of the run are over.
  double batches_to(double epochs) const;

 private:
  struct End {
    std::int64_t epoch, batches;  // drawn in this epoch, which is not over
  };
  // The workers from one change of their number to the next.
  struct Part {
    std::int64_t workers;
    std::int64_t first;              // the earliest epoch that is not over
    std::vector<std::int64_t> left;  // items of that epoch and the ones behind it; then all of them
    std::vector<End> ends{};         // by worker

    std::int64_t whole(std::int64_t items, std::int64_t batch) const { return items / workers / batch; }
  };
  std::int64_t left_of(const Part& part, std::int64_t epoch) const;
  std::int64_t batches_of(const Part& part, std::int64_t epoch) const;
  std::int64_t drawn_of(const Part& part, std::size_t worker, std::int64_t epoch) const;
  End end_of(const Part& part, std::int64_t batches) const;
  Part after(const Part& part, std::int64_t workers) const;

  std::int64_t items_;
  std::int64_t batch_;
  Drawer who_;
  How how_;
  std::vector<Part> before_;
  Part now_;
};

}  // namespace starling
