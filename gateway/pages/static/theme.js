// Light or dark: as the system says, unless the reader has chosen. Not a module, so that it runs before the first paint.
"use strict";

(() => {
  const root = document.documentElement;
  const chosen = localStorage.getItem("theme");
  if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;

  document.addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme").addEventListener("click", () => {
      const isDark = root.dataset.theme
        ? root.dataset.theme === "dark"
        : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = isDark ? "light" : "dark";
      localStorage.setItem("theme", root.dataset.theme);
    });
  });
})();
