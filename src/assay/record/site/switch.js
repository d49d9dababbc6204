// The theme's switch: auto, light, dark.
(() => {
  const root = document.documentElement;
  for (const radio of document.querySelectorAll("input[name=theme]")) {
    radio.checked = radio.value === (root.dataset.theme ?? "auto");
    radio.addEventListener("change", () => {
      if (radio.value === "auto") delete root.dataset.theme;
      else root.dataset.theme = radio.value;
      try {
        localStorage.setItem("assay-theme", radio.value);
      } catch { /* not remembered, but switched */ }
    });
  }
})();
