#include "svg_canvas.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace strata::tool {
namespace {

constexpr std::string_view kFonts = "DejaVu Sans, Verdana, Helvetica, Arial, sans-serif";
// Mean advance of a character of these fonts, in font sizes.
constexpr double kAdvance = 0.6;

std::string escaped(std::string_view content) {
  std::string text;
  for (const char c : content) {
    switch (c) {
      case '<': text += "&lt;"; break;
      case '>': text += "&gt;"; break;
      case '&': text += "&amp;"; break;
      case '"': text += "&quot;"; break;
      default: text += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return text;
}

std::string geometry(const Box& box) {
  return fmt::format(R"(x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}")", box.x, box.y,
                     box.width, box.height);
}

std::string_view name_of(Anchor anchor) {
  switch (anchor) {
    case Anchor::start: return "start";
    case Anchor::middle: return "middle";
    case Anchor::end: return "end";
  }
  return "start";
}

}  // namespace

void SvgCanvas::fill(const Box& box, std::string_view color, std::string_view tooltip) {
  if (tooltip.empty()) {
    body_ += fmt::format("<rect {} fill=\"{}\"/>\n", geometry(box), color);
  } else {
    body_ += fmt::format("<rect {} fill=\"{}\"><title>{}</title></rect>\n", geometry(box), color,
                         escaped(tooltip));
  }
}

void SvgCanvas::outline(const Box& box, std::string_view color, double line_width) {
  body_ += fmt::format("<rect {} fill=\"none\" stroke=\"{}\" stroke-width=\"{:.2f}\"/>\n",
                       geometry(box), color, line_width);
}

void SvgCanvas::hatch(const Box& box) {
  body_ += fmt::format("<rect {} fill=\"url(#hatch)\"/>\n", geometry(box));
}

void SvgCanvas::line(double x1, double y1, double x2, double y2, std::string_view color,
                     double line_width) {
  body_ += fmt::format(
      "<line x1=\"{:.2f}\" y1=\"{:.2f}\" x2=\"{:.2f}\" y2=\"{:.2f}\" stroke=\"{}\" "
      "stroke-width=\"{:.2f}\"/>\n",
      x1, y1, x2, y2, color, line_width);
}

void SvgCanvas::text(double x, double y, std::string_view content, const TextStyle& style) {
  body_ += fmt::format(
      "<text x=\"{:.2f}\" y=\"{:.2f}\" font-size=\"{:.0f}\" text-anchor=\"{}\" fill=\"{}\"{}>{}"
      "</text>\n",
      x, y, style.size, name_of(style.anchor), style.color,
      style.bold ? " font-weight=\"bold\"" : "", escaped(content));
}

std::string SvgCanvas::finish(double width, double height, std::string_view title) const {
  std::string document = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"{2}\" role=\"img\">\n<title>{3}</title>\n",
      width, height, kFonts, escaped(title));
  document +=
      "<defs><pattern id=\"hatch\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" "
      "patternTransform=\"rotate(45)\"><rect width=\"6\" height=\"6\" fill=\"#f7f8f9\"/>"
      "<rect width=\"1.5\" height=\"6\" fill=\"#b6bec6\"/></pattern></defs>\n";
  document +=
      fmt::format("<rect width=\"{:.0f}\" height=\"{:.0f}\" fill=\"#ffffff\"/>\n", width, height);
  return document + body_ + "</svg>\n";
}

double SvgCanvas::text_width(std::string_view content, double size) {
  return static_cast<double>(content.size()) * size * kAdvance;
}

}  // namespace strata::tool
