#include "partition_drawing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "rank_colors.hpp"
#include "svg_canvas.hpp"

namespace strata::tool {
namespace {

constexpr double kWidth = 1040;
constexpr double kMargin = 20;
constexpr double kLabelWidth = 190;
constexpr double kRowX = kMargin + kLabelWidth;
constexpr double kRowWidth = kWidth - kMargin - kRowX;
constexpr double kTensorLane = 40;
constexpr double kShardLane = 18;
constexpr std::string_view kInk = "#1f2933";
constexpr std::string_view kQuiet = "#5f6b76";

// Beyond this the rest of a model is summed up in a line.
constexpr std::size_t kMostRows = 12;
// Larger tensors are not drawn as matrices.
constexpr std::uint64_t kMostMatrixRows = 32;
constexpr std::uint64_t kMostMatrixColumns = 40;
constexpr double kCell = 9;
constexpr double kMatrixGap = 26;

struct Row {
  std::string title;
  const SegmentView* segment = nullptr;
};

std::string count_text(std::uint64_t count) {
  constexpr std::array kSteps{std::pair{1e12, "T"}, std::pair{1e9, "G"}, std::pair{1e6, "M"}};
  for (const auto& [size, letter] : kSteps) {
    const double scaled = static_cast<double>(count) / size;
    if (scaled >= 1) return fmt::format("{:.{}f} {}", scaled, scaled < 10 ? 2 : 1, letter);
  }
  return grouped_digits(count);
}

// A matrix as it is drawn: leading extents are folded into the rows; a vector is one column.
struct MatrixShape {
  std::uint64_t rows = 1;
  std::uint64_t columns = 1;
};

MatrixShape matrix_shape(const TensorInSegment& tensor) {
  const std::uint64_t columns = tensor.shape.size() > 1 ? tensor.shape.back() : 1;
  return {tensor.count_elems / columns, columns};
}

class PartitionDrawing {
 public:
  PartitionDrawing(const Partition& partition, const std::string& caption)
      : partition_(partition), colors_(partition.ranks), caption_(caption) {
    for (const UnitGroup& group : partition.groups) {
      for (const SegmentView& segment : group.first.segments) {
        rows_.push_back({group.title(), &segment});
      }
    }
    shown_ = std::min(rows_.size(), kMostRows);
    for (std::size_t i = 0; i < shown_; ++i) {
      longest_ = std::max(longest_, rows_[i].segment->stored_elems());
    }
    // One scale for all rows, unless the small ones would vanish.
    to_scale_ =
        std::all_of(rows_.begin(), rows_.begin() + static_cast<std::ptrdiff_t>(shown_),
                    [&](const Row& row) { return row.segment->stored_elems() * 5 >= longest_; });
  }

  std::string draw() {
    draw_heading();
    for (std::size_t i = 0; i < shown_; ++i) draw_row(rows_[i]);
    if (shown_ < rows_.size()) draw_rest();
    return canvas_.finish(kWidth, y_ + kMargin / 2,
                          fmt::format("Partition of {} over {} ranks", caption_, partition_.ranks));
  }

 private:
  double row_width(const SegmentView& segment) const {
    if (!to_scale_) return kRowWidth;
    return kRowWidth * static_cast<double>(segment.stored_elems()) / static_cast<double>(longest_);
  }

  void draw_heading() {
    y_ = kMargin + 16;
    canvas_.text(kMargin, y_, fmt::format("{}: which rank holds what", caption_),
                 {.size = 17, .bold = true});
    y_ += 20;
    const std::string drawn = rows_.size() == 1 ? ""
                              : to_scale_       ? "; rows are drawn to one scale"
                                                : "; every row is stretched to full width";
    canvas_.text(
        kMargin, y_,
        fmt::format("{} parameters, {}, {}; slice layout{}", count_text(partition_.count_elems),
                    counted(partition_.units, "unit"), counted(partition_.ranks, "rank"), drawn),
        {.color = kQuiet});
    y_ += 14;
    draw_legend();
    y_ += 16;
  }

  void draw_legend() {
    constexpr double kSwatch = 12;
    double x = kMargin;
    const auto entry = [&](const std::string& label, auto&& swatch) {
      const double width = kSwatch + 6 + SvgCanvas::text_width(label, 11) + 14;
      if (x + width > kWidth - kMargin) {
        x = kMargin;
        y_ += kSwatch + 6;
      }
      const Box box{x, y_, kSwatch, kSwatch};
      swatch(box);
      canvas_.outline(box, kInk, 0.6);
      canvas_.text(x + kSwatch + 6, y_ + 10, label, {.size = 11});
      x += width;
    };
    const std::uint32_t named =
        partition_.ranks <= kMostNamedRanks ? partition_.ranks : kNamedOfMany;
    for (std::uint32_t r = 0; r < named; ++r) {
      entry(fmt::format("rank {}", r), [&](const Box& box) { canvas_.fill(box, colors_[r]); });
    }
    if (named < partition_.ranks) {
      entry(fmt::format("... rank {}, in the order of the shards", partition_.ranks - 1),
            [&](const Box& box) { canvas_.fill(box, colors_[partition_.ranks - 1]); });
    }
    entry("padding", [&](const Box& box) { canvas_.hatch(box); });
    y_ += kSwatch;
  }

  void draw_row(const Row& row) {
    const SegmentView& segment = *row.segment;
    const double width = row_width(segment);
    draw_label(row);
    canvas_.hatch({kRowX, y_, width, kTensorLane});
    for (std::size_t r = 0; r < segment.shards.size(); ++r) {
      for (const HeldPart& part : segment.shards[r].parts) draw_part(segment, part, r, width);
    }
    canvas_.outline({kRowX, y_, width, kTensorLane}, "#9aa5b1", 0.8);
    const std::vector<std::string> unlabelled = draw_tensor_borders(segment, width);
    y_ += kTensorLane + 3;
    draw_shards(segment, width);
    y_ += kShardLane;
    if (partition_.ranks <= 8) draw_ticks(segment, width);
    draw_unlabelled(unlabelled);
    if (fits_as_matrices(segment)) draw_matrices(segment);
    y_ += 22;
  }

  void draw_label(const Row& row) {
    const SegmentView& segment = *row.segment;
    std::string title = row.title;
    const std::size_t most = 24;
    const std::size_t second_line = title.find(" to ");
    double y = y_ + 13;
    if (title.size() > most && second_line != title.npos) {
      canvas_.text(kMargin, y, title.substr(0, second_line), {.size = 13, .bold = true});
      y += 15;
      title = title.substr(second_line + 1);
    }
    canvas_.text(kMargin, y, title, {.size = 13, .bold = true});
    y += 15;
    canvas_.text(kMargin, y,
                 fmt::format("{}, {} elements", segment.trainable ? "trainable" : "frozen",
                             count_text(segment.count_elems())),
                 {.size = 10, .color = kQuiet});
    canvas_.text(kMargin, y + 13, fmt::format("shard of {}", count_text(segment.shard_elems)),
                 {.size = 10, .color = kQuiet});
  }

  Box span_box(const SegmentView& segment, std::uint64_t begin, std::uint64_t end, double width,
               double height) const {
    const double scale = width / static_cast<double>(segment.stored_elems());
    return {kRowX + static_cast<double>(begin) * scale, y_,
            static_cast<double>(end - begin) * scale, height};
  }

  void draw_part(const SegmentView& segment, const HeldPart& part, std::size_t rank, double width) {
    const TensorInSegment& tensor = segment.tensors[part.tensor];
    canvas_.fill(span_box(segment, tensor.begin_elems + part.begin_elems,
                          tensor.begin_elems + part.end_elems, width, kTensorLane),
                 colors_[rank],
                 fmt::format("rank {} holds {}[{}, {})", rank, tensor.name, part.begin_elems,
                             part.end_elems));
  }

  // Returns the tensors that are too narrow for a label.
  std::vector<std::string> draw_tensor_borders(const SegmentView& segment, double width) {
    std::vector<std::string> unlabelled;
    for (const TensorInSegment& tensor : segment.tensors) {
      const Box box = span_box(segment, tensor.begin_elems, tensor.begin_elems + tensor.count_elems,
                               width, kTensorLane);
      canvas_.outline(box, kInk, 1.2);
      const std::string shape = shape_text(tensor.shape);
      const double middle = box.x + box.width / 2;
      const bool name_fits = SvgCanvas::text_width(tensor.name, 12) + 4 < box.width;
      const bool shape_fits = SvgCanvas::text_width(shape, 10) + 4 < box.width;
      if (!name_fits) {
        unlabelled.push_back(fmt::format("{} {}", tensor.name, shape));
        continue;
      }
      canvas_.text(middle, box.y + (shape_fits ? 17 : 24), tensor.name,
                   {.size = 12, .anchor = Anchor::middle, .bold = true});
      if (shape_fits) {
        canvas_.text(middle, box.y + 31, shape, {.size = 10, .anchor = Anchor::middle});
      }
    }
    return unlabelled;
  }

  void draw_shards(const SegmentView& segment, double width) {
    const std::uint64_t shard = segment.shard_elems;
    for (std::size_t r = 0; r < segment.shards.size(); ++r) {
      const Box box = span_box(segment, r * shard, (r + 1) * shard, width, kShardLane);
      canvas_.fill(box, colors_[r],
                   fmt::format("rank {}: [{}, {})", r, r * shard, (r + 1) * shard));
      if (partition_.ranks <= 128) canvas_.outline(box, "#ffffff", 1);
      const std::string name = fmt::format("rank {}", r);
      const std::string number = fmt::format("{}", r);
      const bool name_fits = SvgCanvas::text_width(name, 11) + 4 < box.width;
      const bool number_fits = SvgCanvas::text_width(number, 11) + 2 < box.width;
      if (!number_fits) continue;
      canvas_.text(box.x + box.width / 2, box.y + 13, name_fits ? name : number,
                   {.size = 11, .anchor = Anchor::middle});
    }
  }

  // The element where each shard begins.
  void draw_ticks(const SegmentView& segment, double width) {
    const double step = width / static_cast<double>(partition_.ranks);
    for (std::uint32_t r = 0; r <= partition_.ranks; ++r) {
      const double x = kRowX + step * r;
      canvas_.line(x, y_, x, y_ + 4, kQuiet, 0.8);
      const std::string label = grouped_digits(r * segment.shard_elems);
      if (SvgCanvas::text_width(label, 9) + 4 > step) continue;
      // The outer labels stay inside the row.
      const Anchor anchor = r == 0                  ? Anchor::start
                            : r == partition_.ranks ? Anchor::end
                                                    : Anchor::middle;
      canvas_.text(x, y_ + 13, label, {.size = 9, .anchor = anchor, .color = kQuiet});
    }
    y_ += 14;
  }

  void draw_unlabelled(const std::vector<std::string>& unlabelled) {
    if (unlabelled.empty()) return;
    std::string line = "too narrow for a label: ";
    for (std::size_t i = 0; i < unlabelled.size(); ++i) {
      const std::string more = (i == 0 ? "" : ", ") + unlabelled[i];
      if (SvgCanvas::text_width(line + more, 10) > kRowWidth - 80) {
        line += fmt::format(" and {} more", unlabelled.size() - i);
        break;
      }
      line += more;
    }
    y_ += 13;
    canvas_.text(kRowX, y_, line, {.size = 10, .color = kQuiet});
  }

  static bool fits_as_matrices(const SegmentView& segment) {
    double width = 0;
    for (const TensorInSegment& tensor : segment.tensors) {
      const MatrixShape shape = matrix_shape(tensor);
      if (shape.rows > kMostMatrixRows || shape.columns > kMostMatrixColumns) return false;
      width += std::max(kCell * static_cast<double>(shape.columns),
                        SvgCanvas::text_width(tensor.name, 11)) +
               kMatrixGap;
    }
    return width <= kRowWidth;
  }

  void draw_matrices(const SegmentView& segment) {
    y_ += 18;
    double x = kRowX;
    std::uint64_t most_rows = 0;
    for (std::uint32_t t = 0; t < segment.tensors.size(); ++t) {
      const TensorInSegment& tensor = segment.tensors[t];
      const MatrixShape shape = matrix_shape(tensor);
      canvas_.text(x, y_ + 8, tensor.name, {.size = 11, .bold = true});
      draw_matrix(segment, t, shape, x, y_ + 14);
      x += std::max(kCell * static_cast<double>(shape.columns),
                    SvgCanvas::text_width(tensor.name, 11)) +
           kMatrixGap;
      most_rows = std::max(most_rows, shape.rows);
    }
    y_ += 14 + kCell * static_cast<double>(most_rows);
  }

  // Row-major, each rank's elements in its colour.
  void draw_matrix(const SegmentView& segment, std::uint32_t tensor, MatrixShape shape, double x,
                   double y) {
    for (std::size_t r = 0; r < segment.shards.size(); ++r) {
      for (const HeldPart& part : segment.shards[r].parts) {
        if (part.tensor != tensor) continue;
        for (std::uint64_t i = part.begin_elems; i < part.end_elems;) {
          const std::uint64_t column = i % shape.columns;
          const std::uint64_t run = std::min(shape.columns - column, part.end_elems - i);
          canvas_.fill({x + kCell * static_cast<double>(column),
                        y + kCell * static_cast<double>(i / shape.columns),
                        kCell * static_cast<double>(run), kCell},
                       colors_[r]);
          i += run;
        }
      }
    }
    const double width = kCell * static_cast<double>(shape.columns);
    const double height = kCell * static_cast<double>(shape.rows);
    for (std::uint64_t i = 1; i < shape.columns; ++i) {
      const double at = x + kCell * static_cast<double>(i);
      canvas_.line(at, y, at, y + height, "#ffffff", 0.8);
    }
    for (std::uint64_t i = 1; i < shape.rows; ++i) {
      const double at = y + kCell * static_cast<double>(i);
      canvas_.line(x, at, x + width, at, "#ffffff", 0.8);
    }
    canvas_.outline({x, y, width, height}, kInk, 1.2);
  }

  void draw_rest() {
    canvas_.text(
        kMargin, y_,
        fmt::format("the first {} of {} rows; --unit NAME draws one unit", shown_, rows_.size()),
        {.color = kQuiet});
    y_ += 10;
  }

  static constexpr std::uint32_t kMostNamedRanks = 32;
  static constexpr std::uint32_t kNamedOfMany = 6;

  const Partition& partition_;
  const RankColors colors_;
  const std::string caption_;
  std::vector<Row> rows_;
  std::size_t shown_ = 0;
  std::uint64_t longest_ = 1;
  bool to_scale_ = true;
  SvgCanvas canvas_;
  double y_ = 0;
};

}  // namespace

std::string draw_partition(const Partition& partition, const std::string& caption) {
  return PartitionDrawing(partition, caption).draw();
}

}  // namespace strata::tool
