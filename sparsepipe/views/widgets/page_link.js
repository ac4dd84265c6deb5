// A link to a page that the kernel made: it lies in the link's own address, wherever Jupyter's root is.

function render({ model, el }) {
  let address = "";
  const draw = async () => {
    URL.revokeObjectURL(address);
    address = "";
    el.replaceChildren();
    const packed = model.get("page");
    if (!packed.byteLength) return;
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const page = new Blob([await new Response(stream).arrayBuffer()], { type: "text/html;charset=utf-8" });
    address = URL.createObjectURL(page);
    const link = document.createElement("a");
    Object.assign(link, { href: address, target: "_blank", rel: "noopener", textContent: model.get("label") });
    link.style.cssText = "color:var(--jp-content-link-color,#1565c0);text-decoration:underline";
    el.replaceChildren(link);
  };
  model.on("change:page", draw);
  draw();
  return () => { model.off("change:page", draw); URL.revokeObjectURL(address); };
}

export default { render };
