"use strict";
(() => {
  const form = document.getElementById("filter");
  const properties = [...document.querySelectorAll("details.prop")];
  const none = document.getElementById("no-match");
  const apply = () => {
    const words = form.elements.q.value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = new Set([...form.querySelectorAll("input[type=checkbox]:checked")].map((box) => box.value));
    let shown = 0;
    for (const one of properties) {
      const text = one.textContent.toLowerCase();
      const fits = words.every((word) => text.includes(word)) && one.dataset.s.split(" ").some((s) => wanted.has(s));
      one.hidden = !fits;
      shown += fits ? 1 : 0;
      for (const row of one.querySelectorAll("tbody tr")) row.hidden = !wanted.has(row.dataset.s);
    }
    none.hidden = shown > 0;
  };
  if (form) {
    form.hidden = false;
    form.addEventListener("input", apply);
    form.addEventListener("submit", (event) => event.preventDefault());
  }
  for (const button of document.querySelectorAll("button[data-copy]")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const source = document.getElementById(button.dataset.copy);
      try {
        await navigator.clipboard.writeText(source.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(source);
        button.textContent = "Selected";
      }
    });
  }
  const reveal = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target && target.matches("details")) target.open = true;
  };
  addEventListener("hashchange", reveal);
  reveal();
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => { one.open = true; }));
})();
