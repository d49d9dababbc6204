// Runs before the first paint: the chosen theme, and the mark that scripts work.
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  try {
    const theme = localStorage.getItem("assay-theme");
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  } catch { /* a page from disk may have no storage; the system's theme it is */ }
})();
