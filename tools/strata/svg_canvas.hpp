// A drawing in SVG, written shape by shape: no scripts, no fonts or files from elsewhere. Lengths
// are pixels. Equal calls give equal text on every machine.
#pragma once

#include <string>
#include <string_view>

namespace strata::tool {

struct Box {
  double x = 0;
  double y = 0;
  double width = 0;
  double height = 0;
};

enum class Anchor { start, middle, end };

struct TextStyle {
  double size = 12;
  Anchor anchor = Anchor::start;
  bool bold = false;
  std::string_view color = "#1f2933";
};

class SvgCanvas {
 public:
  // `tooltip` is shown by browsers when the pointer rests on the shape; empty for none.
  void fill(const Box& box, std::string_view color, std::string_view tooltip = "");
  void outline(const Box& box, std::string_view color, double line_width);
  void hatch(const Box& box);
  void line(double x1, double y1, double x2, double y2, std::string_view color, double line_width);
  void text(double x, double y, std::string_view content, const TextStyle& style = {});

  // The document; `title` names it for screen readers.
  std::string finish(double width, double height, std::string_view title) const;

  // Width of `content` at a font size, estimated: fonts differ, so leave some room.
  static double text_width(std::string_view content, double size);

 private:
  std::string body_;
};

}  // namespace strata::tool
